/* The loops of slots.py and columns.py in C, which do in 20 ns what takes Python a microsecond.  compiled.py calls them.

   Each function does what the method of the same name there does; tests hold both to each other, and the allocator's to the one
   made of objects.  Source of its rules: torch 2.13 c10/cuda/CUDACachingAllocator.cpp. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define N_STREAMS 16
#define CHUNK 256
/* c10/core/AllocatorConfig.h, as in settings.py. */
#define MIN_BLOCK 512LL
#define SMALL_REQUEST (1LL << 20)
#define SMALL_SEGMENT (2LL << 20)
#define LARGE_SEGMENT (20LL << 20)
#define MIN_LARGE_REQUEST (10LL << 20)
#define LARGE_ROUNDING (2LL << 20)

enum { ENDED = -1, NO_HOST_MEMORY = -2 };

typedef struct {
    int64_t size, address, block;
} Free;

/* Free blocks in order of size, then address, in chunks: large models leave ten thousands, and one list of them would be moved
   with each that comes or goes. */
typedef struct {
    int64_t count;
    Free free[CHUNK];
} Chunk;

typedef struct {
    Chunk **chunks;
    int64_t n_chunks, room;
} Pool;

typedef struct {
    int64_t chunk, index;
} Place;

typedef struct {
    int64_t size, address, before, after, is_free;
} Block;

typedef struct {
    int64_t limit, keeps_cache, allocated, reserved, most_allocated, most_reserved, n_retries;
    int64_t next_address, n_blocks, room;
    int64_t *live;
    Block *blocks;
    Pool pools[2 * N_STREAMS];
} Memory;

static void pool_close(Pool *pool) {
    for (int64_t number = 0; number < pool->n_chunks; number++) free(pool->chunks[number]);
    free(pool->chunks);
}

void memory_close(Memory *memory) {
    if (memory == NULL) return;
    for (int number = 0; number < 2 * N_STREAMS; number++) pool_close(&memory->pools[number]);
    free(memory->blocks);
    free(memory->live);
    free(memory);
}

/* A card without a limit: the caller sets one, below 0 for none. */
Memory *memory_open(int64_t n_slots) {
    Memory *memory = calloc(1, sizeof(Memory));
    if (memory == NULL) return NULL;
    memory->limit = NONE;
    memory->next_address = LARGE_ROUNDING;
    memory->live = malloc((size_t)(n_slots + 1) * sizeof(int64_t));
    if (memory->live == NULL) {
        memory_close(memory);
        return NULL;
    }
    for (int64_t slot = 0; slot < n_slots; slot++) memory->live[slot] = NONE;
    return memory;
}

static void *copied(const void *from, int64_t count, size_t width) {
    void *made = malloc((size_t)(count + 1) * width);
    if (made != NULL && count) memcpy(made, from, (size_t)count * width);
    return made;
}

static int pool_copy(Pool *made, const Pool *pool) {
    made->room = pool->n_chunks;
    made->chunks = copied(pool->chunks, pool->n_chunks, sizeof(Chunk *));
    for (made->n_chunks = 0; made->chunks != NULL && made->n_chunks < pool->n_chunks; made->n_chunks++) {
        made->chunks[made->n_chunks] = copied(pool->chunks[made->n_chunks], 1, sizeof(Chunk));
        if (made->chunks[made->n_chunks] == NULL) return 0;
    }
    return made->chunks != NULL;
}

/* The same card once more; NULL where the host has no room. */
Memory *memory_copy(const Memory *memory, int64_t n_slots) {
    Memory *made = copied(memory, 1, sizeof(Memory));
    if (made == NULL) return NULL;
    memset(made->pools, 0, sizeof(made->pools));
    made->room = memory->n_blocks;
    made->live = copied(memory->live, n_slots, sizeof(int64_t));
    made->blocks = copied(memory->blocks, memory->n_blocks, sizeof(Block));
    int failed = made->live == NULL || made->blocks == NULL;
    for (int number = 0; number < 2 * N_STREAMS && !failed; number++)
        failed = !pool_copy(&made->pools[number], &memory->pools[number]);
    if (!failed) return made;
    memory_close(made);
    return NULL;
}

static int is_below(const Free *at, int64_t size, int64_t address) {
    return at->size < size || (at->size == size && at->address < address);
}

/* The place of the first free block that is not below (size, address): behind the last chunk where there is none. */
static Place place_of(const Pool *pool, int64_t size, int64_t address) {
    int64_t low = 0, high = pool->n_chunks;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const Chunk *chunk = pool->chunks[middle];
        if (is_below(&chunk->free[chunk->count - 1], size, address)) low = middle + 1;
        else high = middle;
    }
    Place place = {low, 0};
    if (low == pool->n_chunks) return place;
    const Chunk *chunk = pool->chunks[low];
    high = chunk->count;
    while (place.index < high) {
        int64_t middle = (place.index + high) / 2;
        if (is_below(&chunk->free[middle], size, address)) place.index = middle + 1;
        else high = middle;
    }
    return place;
}

/* A chunk goes when it is empty. */
static void take_out(Pool *pool, Place place) {
    Chunk *chunk = pool->chunks[place.chunk];
    chunk->count--;
    memmove(&chunk->free[place.index], &chunk->free[place.index + 1], (size_t)(chunk->count - place.index) * sizeof(Free));
    if (chunk->count) return;
    free(chunk);
    pool->n_chunks--;
    memmove(&pool->chunks[place.chunk], &pool->chunks[place.chunk + 1], (size_t)(pool->n_chunks - place.chunk) * sizeof(Chunk *));
}

/* An empty chunk at this place; NULL where the host has no room. */
static Chunk *new_chunk(Pool *pool, int64_t number) {
    if (pool->n_chunks == pool->room) {
        int64_t room = pool->room ? 2 * pool->room : 16;
        Chunk **larger = realloc(pool->chunks, (size_t)room * sizeof(Chunk *));
        if (larger == NULL) return NULL;
        pool->chunks = larger;
        pool->room = room;
    }
    Chunk *made = malloc(sizeof(Chunk));
    if (made == NULL) return NULL;
    made->count = 0;
    memmove(&pool->chunks[number + 1], &pool->chunks[number], (size_t)(pool->n_chunks - number) * sizeof(Chunk *));
    pool->chunks[number] = made;
    pool->n_chunks++;
    return made;
}

/* A full chunk is halved. */
static int put_in(Pool *pool, const Block *blocks, int64_t block) {
    int64_t size = blocks[block].size, address = blocks[block].address;
    if (!pool->n_chunks && new_chunk(pool, 0) == NULL) return 0;
    Place place = {0, 0};
    if (pool->chunks[0]->count) place = place_of(pool, size, address);
    if (place.chunk == pool->n_chunks) place = (Place){place.chunk - 1, pool->chunks[place.chunk - 1]->count};
    Chunk *chunk = pool->chunks[place.chunk];
    if (chunk->count == CHUNK) {
        Chunk *behind = new_chunk(pool, place.chunk + 1);
        if (behind == NULL) return 0;
        chunk->count = CHUNK / 2;
        behind->count = CHUNK - chunk->count;
        memcpy(behind->free, &chunk->free[chunk->count], (size_t)behind->count * sizeof(Free));
        if (place.index > chunk->count) {
            place.index -= chunk->count;
            chunk = behind;
        }
    }
    memmove(&chunk->free[place.index + 1], &chunk->free[place.index], (size_t)(chunk->count - place.index) * sizeof(Free));
    chunk->free[place.index] = (Free){size, address, block};
    chunk->count++;
    return 1;
}

static int64_t new_block(Memory *memory, Block block) {
    if (memory->n_blocks == memory->room) {
        int64_t room = memory->room ? 2 * memory->room : 1024;
        Block *larger = realloc(memory->blocks, (size_t)room * sizeof(Block));
        if (larger == NULL) return NO_HOST_MEMORY;
        memory->blocks = larger;
        memory->room = room;
    }
    memory->blocks[memory->n_blocks] = block;
    return memory->n_blocks++;
}

/* Give back every segment without a block in use (release_cached_blocks). */
void release_cached(Memory *memory) {
    for (int number = 0; number < 2 * N_STREAMS; number++) {
        Pool *pool = &memory->pools[number];
        int64_t chunks_kept = 0;
        for (int64_t at = 0; at < pool->n_chunks; at++) {
            Chunk *chunk = pool->chunks[at];
            int64_t kept = 0;
            for (int64_t index = 0; index < chunk->count; index++) {
                Block *block = &memory->blocks[chunk->free[index].block];
                if (block->before == NONE && block->after == NONE) {
                    memory->reserved -= block->size;
                    block->is_free = 0;
                } else {
                    chunk->free[kept++] = chunk->free[index];
                }
            }
            chunk->count = kept;
            if (kept) pool->chunks[chunks_kept++] = chunk;
            else free(chunk);
        }
        pool->n_chunks = chunks_kept;
    }
}

/* A block of new memory for a rounded request, after giving the cache back if need be; NONE where there is none. */
static int64_t new_segment(Memory *memory, int64_t want) {
    int64_t size = want <= SMALL_REQUEST ? SMALL_SEGMENT
        : want < MIN_LARGE_REQUEST ? LARGE_SEGMENT
        : (want + LARGE_ROUNDING - 1) / LARGE_ROUNDING * LARGE_ROUNDING;
    if (memory->limit >= 0 && memory->reserved + size > memory->limit) {
        if (memory->keeps_cache) return NONE;
        release_cached(memory);
        memory->n_retries++;
        if (memory->reserved + size > memory->limit) return NONE;
    }
    int64_t block = new_block(memory, (Block){size, memory->next_address, NONE, NONE, 0});
    if (block < 0) return block;
    memory->reserved += size;
    memory->next_address += size;
    if (memory->reserved > memory->most_reserved) memory->most_reserved = memory->reserved;
    return block;
}

/* Cut off what a block of `want` bytes does not need, if that is worth a block (should_split). */
static int split(Memory *memory, Pool *pool, int64_t block, int64_t want) {
    int64_t rest = memory->blocks[block].size - want, behind = memory->blocks[block].after;
    if (want <= SMALL_REQUEST ? rest < MIN_BLOCK : rest <= SMALL_REQUEST) return 1;
    int64_t cut = new_block(memory, (Block){rest, memory->blocks[block].address + want, block, behind, 1});
    if (cut < 0) return 0;
    if (behind != NONE) memory->blocks[behind].before = cut;
    memory->blocks[block].after = cut;
    memory->blocks[block].size = want;
    return put_in(pool, memory->blocks, cut);
}

/* A block for a request (malloc, get_free_block, alloc_found_block). */
static int64_t allocate(Memory *memory, Pool *pool, int64_t want) {
    Place place = place_of(pool, want, 0);
    int64_t block;
    if (place.chunk < pool->n_chunks) {
        block = pool->chunks[place.chunk]->free[place.index].block;
        take_out(pool, place);
        memory->blocks[block].is_free = 0;
    } else {
        block = new_segment(memory, want);
        if (block < 0) return block;
    }
    return split(memory, pool, block, want) ? block : NO_HOST_MEMORY;
}

/* Join a freed block with free neighbours (free_block, try_merge_blocks). */
static int give_back(Memory *memory, Pool *pool, int64_t block) {
    Block *blocks = memory->blocks;
    int64_t before = blocks[block].before;
    if (before != NONE && blocks[before].is_free) {
        take_out(pool, place_of(pool, blocks[before].size, blocks[before].address));
        blocks[before].size += blocks[block].size;
        blocks[before].after = blocks[block].after;
        if (blocks[block].after != NONE) blocks[blocks[block].after].before = before;
        block = before;
    }
    int64_t after = blocks[block].after;
    if (after != NONE && blocks[after].is_free) {
        take_out(pool, place_of(pool, blocks[after].size, blocks[after].address));
        blocks[after].is_free = 0;
        blocks[block].size += blocks[after].size;
        blocks[block].after = blocks[after].after;
        if (blocks[after].after != NONE) blocks[blocks[after].after].before = block;
    }
    blocks[block].is_free = 1;
    return put_in(pool, blocks, block);
}

/* Serve events: the place of the one that failed, ENDED, or NO_HOST_MEMORY.  *peak: after which most was allocated, or NONE. */
int64_t run(Memory *memory, const int64_t *events, int64_t n_events, const int64_t *sizes, const uint8_t *streams, int64_t *peak) {
    memory->most_allocated = memory->allocated;
    *peak = NONE;
    for (int64_t index = 0; index < n_events; index++) {
        int64_t event = events[index], slot = event >= 0 ? event : ~event;
        int64_t want = (sizes[slot] + MIN_BLOCK - 1) / MIN_BLOCK * MIN_BLOCK;
        Pool *pool = &memory->pools[2 * (streams == NULL ? 0 : streams[slot]) + (want > SMALL_REQUEST)];
        if (event >= 0) {
            if (want == 0) continue;
            int64_t block = allocate(memory, pool, want);
            if (block < 0) return block == NONE ? index : NO_HOST_MEMORY;
            memory->live[slot] = block;
            memory->allocated += memory->blocks[block].size;
            if (memory->allocated > memory->most_allocated) {
                memory->most_allocated = memory->allocated;
                *peak = index;
            }
        } else if (memory->live[slot] != NONE) {
            memory->allocated -= memory->blocks[memory->live[slot]].size;
            if (!give_back(memory, pool, memory->live[slot])) return NO_HOST_MEMORY;
        }
    }
    return ENDED;
}

/* How many free blocks there are; *largest: bytes of the largest. */
int64_t count_free(const Memory *memory, int64_t *largest) {
    int64_t count = 0;
    *largest = 0;
    for (int number = 0; number < 2 * N_STREAMS; number++) {
        const Pool *pool = &memory->pools[number];
        for (int64_t at = 0; at < pool->n_chunks; at++) {
            const Chunk *chunk = pool->chunks[at];
            count += chunk->count;
            if (chunk->free[chunk->count - 1].size > *largest) *largest = chunk->free[chunk->count - 1].size;
        }
    }
    return count;
}

/* Bytes held of each kind after each of the moments, which are in order: n_kinds numbers a moment. */
void held_at(const int64_t *events, const int64_t *sizes, const uint8_t *kinds, const int64_t *moments, int64_t n_moments,
             int64_t n_kinds, int64_t *held) {
    int64_t index = 0;
    for (int64_t number = 0; number < n_moments; number++, held += n_kinds) {
        if (number) memcpy(held, held - n_kinds, (size_t)n_kinds * sizeof(int64_t));
        for (; index <= moments[number]; index++) {
            int64_t event = events[index], slot = event >= 0 ? event : ~event;
            held[kinds[slot]] += event >= 0 ? sizes[slot] : -sizes[slot];
        }
    }
}

/* Most bytes held in each phase, with what is there when it begins. */
void fullest(const int64_t *events, int64_t n_events, const int64_t *sizes, const int64_t *begins, int64_t n_phases, int64_t *most) {
    int64_t level = 0;
    for (int64_t number = 0; number < n_phases; number++) {
        int64_t end = number + 1 < n_phases ? begins[number + 1] : n_events, high = level;
        for (int64_t index = begins[number]; index < end; index++) {
            int64_t event = events[index];
            level += event >= 0 ? sizes[event] : -sizes[~event];
            if (level > high) high = level;
        }
        most[number] = high;
    }
}

/* The same events of slots that begin `base` later; what is not below `most` stays. */
void shifted(const int64_t *events, int64_t n_events, int64_t base, int64_t most, int64_t *moved) {
    for (int64_t index = 0; index < n_events; index++) {
        int64_t event = events[index];
        moved[index] = event >= most ? event : event >= 0 ? event + base : event - base;
    }
}

/* Bytes of every slot, to the even neighbour from the middle; the sum of them, or -1 above `most`. */
int64_t in_bytes(const uint8_t *units, const double *unit_bytes, int64_t n_slots, const double *values, int64_t most, int64_t *sizes) {
    const double whole = 4503599627370496.0; /* 2^52: numbers from here on have no fraction */
    double sum = 0;
    for (int64_t slot = 0; slot < n_slots; slot++) {
        double size = unit_bytes[slot] * values[units[slot]];
        if (size < whole) size = size + whole - whole;
        sum += size;
        if (!(sum <= (double)most)) return -1;
        sizes[slot] = (int64_t)size;
    }
    return (int64_t)sum;
}
