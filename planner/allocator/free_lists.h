/* Blocks of memory, and the free ones of each stream and size class in order.  replay.c includes this. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define CHUNK 64
#define MOST_LAG 15
#define HOST_WAITS 255

typedef struct {
    int64_t size, address, block;
} Free;

/* Free blocks in order of size, then address, in chunks: large models leave ten thousands, and one list of them would be moved
   with each that comes or goes. */
typedef struct {
    int64_t count;
    Free free[CHUNK];
} Chunk;

/* `waiting`: blocks that the program let go of while another stream may use them, the oldest first.
   `holes`: blocks of growing segments without memory behind them, in order of address. */
typedef struct {
    Chunk **chunks;
    int64_t n_chunks, room, n_waiting;
    int64_t waiting[MOST_LAG + 1];
    int64_t *holes;
    int64_t n_holes, hole_room;
} Pool;

typedef struct {
    int64_t chunk, index;
} Place;

/* A hole is not free. */
typedef struct {
    int64_t size, address, before, after, is_free, is_hole;
} Block;

static void pool_close(Pool *pool) {
    for (int64_t number = 0; number < pool->n_chunks; number++) free(pool->chunks[number]);
    free(pool->chunks);
    free(pool->holes);
}

static void *copied(const void *from, int64_t count, size_t width) {
    void *made = malloc((size_t)(count + 1) * width);
    if (made != NULL && count) memcpy(made, from, (size_t)count * width);
    return made;
}

static int pool_copy(Pool *made, const Pool *pool) {
    made->n_waiting = pool->n_waiting;
    memcpy(made->waiting, pool->waiting, sizeof(pool->waiting));
    made->room = pool->n_chunks;
    made->chunks = copied(pool->chunks, pool->n_chunks, sizeof(Chunk *));
    for (made->n_chunks = 0; made->chunks != NULL && made->n_chunks < pool->n_chunks; made->n_chunks++) {
        made->chunks[made->n_chunks] = copied(pool->chunks[made->n_chunks], 1, sizeof(Chunk));
        if (made->chunks[made->n_chunks] == NULL) return 0;
    }
    return made->chunks != NULL;
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
