/* The loops of slots.py and columns.py in C, which do in 20 ns what takes Python a microsecond.  compiled.py calls them.

   Each function does what the method of the same name there does; tests hold both to each other, and the allocator's to the one
   made of objects.  Source of its rules: torch 2.13 c10/cuda/CUDACachingAllocator.cpp. */

#include "free_lists.h"

#define N_STREAMS 16
/* c10/core/AllocatorConfig.h, as in settings.py. */
#define MIN_BLOCK 512LL
#define SMALL_REQUEST (1LL << 20)
#define SMALL_SEGMENT (2LL << 20)
#define LARGE_SEGMENT (20LL << 20)
#define MIN_LARGE_REQUEST (10LL << 20)
#define LARGE_ROUNDING (2LL << 20)
/* device.py */
#define TOP_ADDRESS (1LL << 62)
#define GRANULE (32LL << 20)

enum { ENDED = -1, NO_HOST_MEMORY = -2 };

typedef struct {
    int64_t start, size;
} Range;

typedef struct {
    int64_t limit, keeps_cache, allocated, reserved, most_allocated, most_reserved, n_retries;
    int64_t bottom, n_left, left_room; /* addresses below those in use, and what is left of granules, the lowest last */
    Range *left;
    int64_t n_blocks, room;
    int64_t spaces[2]; /* addresses of a growing segment of small and of large blocks; 0 where segments do not grow */
    int64_t *live;
    uint8_t *origins; /* the pool that the block of each slot is from */
    Block *blocks;
    Pool pools[2 * N_STREAMS];
} Memory;

void memory_close(Memory *memory) {
    if (memory == NULL) return;
    for (int number = 0; number < 2 * N_STREAMS; number++) pool_close(&memory->pools[number]);
    free(memory->left);
    free(memory->blocks);
    free(memory->live);
    free(memory->origins);
    free(memory);
}

/* A card without a limit: the caller sets one, below 0 for none. */
Memory *memory_open(int64_t n_slots) {
    Memory *memory = calloc(1, sizeof(Memory));
    if (memory == NULL) return NULL;
    memory->limit = NONE;
    memory->bottom = TOP_ADDRESS;
    memory->live = malloc((size_t)(n_slots + 1) * sizeof(int64_t));
    memory->origins = calloc((size_t)(n_slots + 1), 1);
    if (memory->live == NULL || memory->origins == NULL) {
        memory_close(memory);
        return NULL;
    }
    for (int64_t slot = 0; slot < n_slots; slot++) memory->live[slot] = NONE;
    return memory;
}

/* Its segments grow, by pages in as many addresses (expandable_segments). */
void let_grow(Memory *memory, int64_t small_space, int64_t large_space) {
    memory->spaces[0] = small_space;
    memory->spaces[1] = large_space;
}

/* The same card once more, where segments do not grow; NULL where the host has no room. */
Memory *memory_copy(const Memory *memory, int64_t n_slots) {
    Memory *made = copied(memory, 1, sizeof(Memory));
    if (made == NULL) return NULL;
    memset(made->pools, 0, sizeof(made->pools));
    made->room = memory->n_blocks;
    made->live = copied(memory->live, n_slots, sizeof(int64_t));
    made->origins = copied(memory->origins, n_slots, 1);
    made->blocks = copied(memory->blocks, memory->n_blocks, sizeof(Block));
    made->left_room = memory->n_left;
    made->left = copied(memory->left, memory->n_left, sizeof(Range));
    int failed = made->live == NULL || made->origins == NULL || made->blocks == NULL || made->left == NULL;
    for (int number = 0; number < 2 * N_STREAMS && !failed; number++)
        failed = !pool_copy(&made->pools[number], &memory->pools[number]);
    if (!failed) return made;
    memory_close(made);
    return NULL;
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

/* Join a freed block with free neighbours (free_block, try_merge_blocks): the block that they are then, or NO_HOST_MEMORY. */
static int64_t give_back(Memory *memory, Pool *pool, int64_t block) {
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
    return put_in(pool, blocks, block) ? block : NO_HOST_MEMORY;
}

/* Blocks of a pool wait for another stream no more, the oldest first, until `most` of them do (process_events). */
static int complete(Memory *memory, Pool *pool, int64_t most) {
    int64_t going = pool->n_waiting > most ? pool->n_waiting - most : 0;
    for (int64_t place = 0; place < going; place++)
        if (give_back(memory, pool, pool->waiting[place]) < 0) return 0;
    pool->n_waiting -= going;
    memmove(pool->waiting, &pool->waiting[going], (size_t)pool->n_waiting * sizeof(int64_t));
    return 1;
}

/* Give back every plain segment of a pool without a block in use (release_blocks). */
static void release_segments(Memory *memory, Pool *pool) {
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

/* Cut a block down to `size` bytes; the rest is a block behind it, in no list. */
static int64_t cut_off(Memory *memory, int64_t block, int64_t size) {
    Block *whole = &memory->blocks[block];
    int64_t behind = whole->after;
    int64_t rest = new_block(memory, (Block){whole->size - size, whole->address + size, block, behind, 0, 0});
    if (rest < 0) return rest;
    if (behind != NONE) memory->blocks[behind].before = rest;
    memory->blocks[block].after = rest;
    memory->blocks[block].size = size;
    return rest;
}

/* Let a block take in the one behind it. */
static void join(Block *blocks, int64_t block, int64_t behind) {
    blocks[block].size += blocks[behind].size;
    blocks[block].after = blocks[behind].after;
    if (blocks[behind].after != NONE) blocks[blocks[behind].after].before = block;
}

static int open_hole(Memory *memory, Pool *pool, int64_t block) {
    if (pool->n_holes == pool->hole_room) {
        int64_t room = pool->hole_room ? 2 * pool->hole_room : 16;
        int64_t *larger = realloc(pool->holes, (size_t)room * sizeof(int64_t));
        if (larger == NULL) return 0;
        pool->holes = larger;
        pool->hole_room = room;
    }
    int64_t place = pool->n_holes++;
    for (; place && memory->blocks[pool->holes[place - 1]].address > memory->blocks[block].address; place--)
        pool->holes[place] = pool->holes[place - 1];
    pool->holes[place] = block;
    memory->blocks[block].is_hole = 1;
    return 1;
}

static void close_hole(Memory *memory, Pool *pool, int64_t block) {
    int64_t place = 0;
    while (pool->holes[place] != block) place++;
    pool->n_holes--;
    memmove(&pool->holes[place], &pool->holes[place + 1], (size_t)(pool->n_holes - place) * sizeof(int64_t));
    memory->blocks[block].is_hole = 0;
}

static int is_large(const Memory *memory, const Pool *pool) { return (pool - memory->pools) % 2; }

static int64_t page_of(const Memory *memory, const Pool *pool) { return is_large(memory, pool) ? LARGE_SEGMENT : SMALL_SEGMENT; }

/* Put pages behind the first `size` bytes of a hole (map_block): the free block that they are part of then; NONE on a full card. */
static int64_t map(Memory *memory, Pool *pool, int64_t hole, int64_t size) {
    int64_t page = page_of(memory, pool), mapped = (size + page - 1) / page * page;
    if (memory->limit >= 0 && memory->reserved + mapped > memory->limit) return NONE;
    memory->reserved += mapped;
    if (memory->reserved > memory->most_reserved) memory->most_reserved = memory->reserved;
    close_hole(memory, pool, hole);
    if (mapped < memory->blocks[hole].size) {
        int64_t rest = cut_off(memory, hole, mapped);
        if (rest < 0 || !open_hole(memory, pool, rest)) return NO_HOST_MEMORY;
    }
    return give_back(memory, pool, hole);
}

/* Take the pages that lie wholly in a free block from behind it (unmap_block); a segment without any goes. */
static int unmap(Memory *memory, Pool *pool, int64_t block) {
    int64_t page = page_of(memory, pool), address = memory->blocks[block].address, size = memory->blocks[block].size;
    int64_t start = (address + page - 1) / page * page, end = (address + size) / page * page;
    if (start >= end) return 1;
    take_out(pool, place_of(pool, size, address));
    memory->blocks[block].is_free = 0;
    if (start > address) {
        int64_t front = block;
        block = cut_off(memory, block, start - address);
        if (block < 0) return 0;
        memory->blocks[front].is_free = 1;
        if (!put_in(pool, memory->blocks, front)) return 0;
    }
    if (end < address + size) {
        int64_t rest = cut_off(memory, block, end - start);
        if (rest < 0) return 0;
        memory->blocks[rest].is_free = 1;
        if (!put_in(pool, memory->blocks, rest)) return 0;
    }
    memory->reserved -= end - start;
    int64_t before = memory->blocks[block].before, after = memory->blocks[block].after;
    if (after != NONE && memory->blocks[after].is_hole) {
        close_hole(memory, pool, after);
        join(memory->blocks, block, after);
    }
    if (before != NONE && memory->blocks[before].is_hole) {
        close_hole(memory, pool, before);
        join(memory->blocks, before, block);
        block = before;
    }
    if (memory->blocks[block].before == NONE && memory->blocks[block].after == NONE) return 1;
    return open_hole(memory, pool, block);
}

/* Unmap all whole pages of the free blocks of a pool (release_blocks), from a list of them: unmapping changes the pool. */
static int release_pages(Memory *memory, Pool *pool) {
    int64_t count = 0, n_free = 0;
    for (int64_t at = 0; at < pool->n_chunks; at++) n_free += pool->chunks[at]->count;
    int64_t *blocks = malloc((size_t)(n_free + 1) * sizeof(int64_t));
    if (blocks == NULL) return 0;
    for (int64_t at = 0; at < pool->n_chunks; at++)
        for (int64_t index = 0; index < pool->chunks[at]->count; index++) blocks[count++] = pool->chunks[at]->free[index].block;
    int is_done = 1;
    for (int64_t index = 0; index < count && is_done; index++) is_done = unmap(memory, pool, blocks[index]);
    free(blocks);
    return is_done;
}

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

static int64_t greater(int64_t one, int64_t other) { return one > other ? one : other; }

/* Start of `size` bytes of addresses at a multiple of `page`, below all others (Addresses.take_range). */
static int64_t take_range(Memory *memory, int64_t size, int64_t page) {
    memory->bottom = (memory->bottom - size) / page * page;
    return memory->bottom;
}

/* Start of `size` bytes of addresses for a segment (Addresses.take). */
static int64_t take(Memory *memory, int64_t size) {
    for (int64_t place = memory->n_left - 1; place >= 0 && size < GRANULE; place--) {
        Range *left = &memory->left[place];
        if (left->size < size) continue;
        int64_t start = left->start;
        *left = (Range){start + size, left->size - size};
        if (!left->size) {
            memory->n_left--;
            memmove(left, left + 1, (size_t)(memory->n_left - place) * sizeof(Range));
        }
        return start;
    }
    if (memory->n_left == memory->left_room) {
        int64_t room = memory->left_room ? 2 * memory->left_room : 64;
        Range *larger = realloc(memory->left, (size_t)room * sizeof(Range));
        if (larger == NULL) return NO_HOST_MEMORY;
        memory->left = larger;
        memory->left_room = room;
    }
    int64_t start = take_range(memory, size, GRANULE);
    if (size % GRANULE) memory->left[memory->n_left++] = (Range){start + size, GRANULE - size % GRANULE};
    return start;
}

/* The first free block or hole from which `want` bytes of addresses can be used (find_expandable_block); a new segment where there
   is none, with no fewer addresses than that. */
static int64_t first_with_room(Memory *memory, Pool *pool, int64_t want) {
    const Block *blocks = memory->blocks;
    for (int64_t number = 0; number < pool->n_holes; number++) {
        int64_t block = pool->holes[number], before = blocks[block].before, room = 0;
        if (before != NONE && blocks[before].is_free) block = before;
        for (int64_t each = block; room < want && each != NONE && (blocks[each].is_free || blocks[each].is_hole);
             each = blocks[each].after)
            room += blocks[each].size;
        if (room >= want) return block;
    }
    int64_t page = page_of(memory, pool);
    int64_t space = greater(memory->spaces[is_large(memory, pool)], (want + page - 1) / page * page);
    int64_t block = new_block(memory, (Block){space, take_range(memory, space, page), NONE, NONE, 0, 0});
    if (block < 0) return block;
    return open_hole(memory, pool, block) ? block : NO_HOST_MEMORY;
}

/* Map pages until a block has `want` bytes (try_allocate_expandable_block); NONE on a full card, where what was mapped stays. */
static int64_t grow(Memory *memory, Pool *pool, int64_t want) {
    int64_t block = first_with_room(memory, pool, want);
    if (block >= 0 && memory->blocks[block].is_hole) block = map(memory, pool, block, least(want, memory->blocks[block].size));
    while (block >= 0 && memory->blocks[block].size < want) {
        int64_t behind = memory->blocks[block].after;
        if (behind == NONE) return NONE;
        block = map(memory, pool, behind, least(want - memory->blocks[block].size, memory->blocks[behind].size));
    }
    if (block < 0) return block;
    take_out(pool, place_of(pool, memory->blocks[block].size, memory->blocks[block].address));
    memory->blocks[block].is_free = 0;
    return block;
}

/* Bytes of a free block with the hole behind it. */
static int64_t reach_of(const Memory *memory, int64_t block) {
    int64_t behind = memory->blocks[block].after;
    return memory->blocks[block].size + (behind != NONE && memory->blocks[behind].is_hole ? memory->blocks[behind].size : 0);
}

/* Move on to the next larger free block while it could grow to less (get_free_block). */
static Place best_fit(const Memory *memory, const Pool *pool, Place place) {
    int64_t reach = reach_of(memory, pool->chunks[place.chunk]->free[place.index].block);
    for (;;) {
        Place next = {place.chunk, place.index + 1};
        if (next.index == pool->chunks[next.chunk]->count) next = (Place){place.chunk + 1, 0};
        if (next.chunk == pool->n_chunks) return place;
        int64_t following = reach_of(memory, pool->chunks[next.chunk]->free[next.index].block);
        if (following >= reach) return place;
        place = next;
        reach = following;
    }
}

/* The host waits for the other streams: what they used can be used again, but for the last `left` blocks of each pool. */
int64_t wait_for_streams(Memory *memory, int64_t left) {
    for (int number = 0; number < 2 * N_STREAMS; number++)
        if (!complete(memory, &memory->pools[number], left)) return NO_HOST_MEMORY;
    return ENDED;
}

/* Wait for the other streams, and give back every segment without a block in use, or every such page where segments grow
   (release_cached_blocks). */
int64_t release_cached(Memory *memory) {
    if (wait_for_streams(memory, 0) == NO_HOST_MEMORY) return NO_HOST_MEMORY;
    for (int number = 0; number < 2 * N_STREAMS; number++) {
        Pool *pool = &memory->pools[number];
        if (!memory->spaces[0]) release_segments(memory, pool);
        else if (!release_pages(memory, pool)) return NO_HOST_MEMORY;
    }
    return ENDED;
}

/* A block of new memory for a rounded request, after giving the cache back if need be; NONE where there is none. */
static int64_t new_segment(Memory *memory, int64_t want) {
    int64_t size = want <= SMALL_REQUEST ? SMALL_SEGMENT
        : want < MIN_LARGE_REQUEST ? LARGE_SEGMENT
        : (want + LARGE_ROUNDING - 1) / LARGE_ROUNDING * LARGE_ROUNDING;
    if (memory->limit >= 0 && memory->reserved + size > memory->limit) {
        if (memory->keeps_cache) return NONE;
        if (release_cached(memory) == NO_HOST_MEMORY) return NO_HOST_MEMORY;
        memory->n_retries++;
        if (memory->reserved + size > memory->limit) return NONE;
    }
    int64_t start = take(memory, size);
    if (start < 0) return start;
    int64_t block = new_block(memory, (Block){size, start, NONE, NONE, 0, 0});
    if (block < 0) return block;
    memory->reserved += size;
    if (memory->reserved > memory->most_reserved) memory->most_reserved = memory->reserved;
    return block;
}

/* The same where segments grow. */
static int64_t new_pages(Memory *memory, Pool *pool, int64_t want) {
    int64_t block = grow(memory, pool, want);
    if (block != NONE) return block;
    if (release_cached(memory) == NO_HOST_MEMORY) return NO_HOST_MEMORY;
    memory->n_retries++;
    return grow(memory, pool, want);
}

/* Cut off what a block of `want` bytes does not need, if that is worth a block (should_split). */
static int split(Memory *memory, Pool *pool, int64_t block, int64_t want) {
    int64_t rest = memory->blocks[block].size - want;
    if (want <= SMALL_REQUEST || memory->spaces[0] ? rest < MIN_BLOCK : rest <= SMALL_REQUEST) return 1;
    int64_t cut = cut_off(memory, block, want);
    if (cut < 0) return 0;
    memory->blocks[cut].is_free = 1;
    return put_in(pool, memory->blocks, cut);
}

/* A block for a request (malloc, get_free_block, alloc_found_block). */
static int64_t allocate(Memory *memory, Pool *pool, int64_t want) {
    Place place = place_of(pool, want, 0);
    int64_t block;
    if (place.chunk < pool->n_chunks) {
        if (memory->spaces[0]) place = best_fit(memory, pool, place);
        block = pool->chunks[place.chunk]->free[place.index].block;
        take_out(pool, place);
        memory->blocks[block].is_free = 0;
    } else {
        block = memory->spaces[0] ? new_pages(memory, pool, want) : new_segment(memory, want);
        if (block < 0) return block;
    }
    return split(memory, pool, block, want) ? block : NO_HOST_MEMORY;
}

/* The program lets go of a block; `lag`: of how many later ones of its pool before another stream is done with it. */
static int let_go(Memory *memory, Pool *pool, int64_t block, int64_t lag) {
    memory->allocated -= memory->blocks[block].size;
    if (lag == 0) return give_back(memory, pool, block) >= 0;
    pool->waiting[pool->n_waiting++] = block;
    return complete(memory, pool, lag);
}

/* Serve events: the place of the one that failed, ENDED, or NO_HOST_MEMORY.  *peak: after which most was allocated, or NONE. */
int64_t run(Memory *memory, const int64_t *events, int64_t n_events, const int64_t *sizes, const uint8_t *streams,
            const uint8_t *lags, int64_t *peak) {
    memory->most_allocated = memory->allocated;
    *peak = NONE;
    for (int64_t index = 0; index < n_events; index++) {
        int64_t event = events[index], slot = event >= 0 ? event : ~event;
        if (event >= 0) {
            int64_t want = (sizes[slot] + MIN_BLOCK - 1) / MIN_BLOCK * MIN_BLOCK;
            if (want == 0) continue;
            int number = 2 * (streams == NULL ? 0 : streams[slot]) + (want > SMALL_REQUEST);
            int64_t block = allocate(memory, &memory->pools[number], want);
            if (block < 0) return block == NONE ? index : NO_HOST_MEMORY;
            memory->live[slot] = block;
            memory->origins[slot] = (uint8_t)number;
            memory->allocated += memory->blocks[block].size;
            if (memory->allocated > memory->most_allocated) {
                memory->most_allocated = memory->allocated;
                *peak = index;
            }
        } else if (memory->live[slot] != NONE) {
            /* Its size may have been another one when it was allocated: in batches of another length. */
            int64_t block = memory->live[slot];
            memory->live[slot] = NONE;
            Pool *pool = &memory->pools[memory->origins[slot]];
            if (!let_go(memory, pool, block, lags == NULL ? 0 : lags[slot])) return NO_HOST_MEMORY;
        } else if (lags != NULL && lags[slot] >= HOST_WAITS - MOST_LAG) {
            if (wait_for_streams(memory, HOST_WAITS - lags[slot]) == NO_HOST_MEMORY) return NO_HOST_MEMORY;
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

/* Events of slots that these allocate and free, and their places; those of the others come from the end.
   `seen` has a zero for every slot. */
int64_t passing(const int64_t *events, int64_t n_events, uint8_t *seen, int64_t *kept, int64_t *places) {
    int64_t n_kept = 0, n_left = 0;
    for (int64_t index = 0; index < n_events; index++) {
        int64_t event = events[index];
        seen[event >= 0 ? event : ~event] |= event >= 0 ? 1 : 2;
    }
    for (int64_t index = 0; index < n_events; index++) {
        int64_t event = events[index];
        if (seen[event >= 0 ? event : ~event] == 3) {
            kept[n_kept] = event;
            places[n_kept++] = index;
        } else {
            places[n_events - ++n_left] = index;
        }
    }
    return n_kept;
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
