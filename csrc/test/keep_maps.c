/* Preloaded below `test` by ./dev soak and ./dev test: the slabs of send and receive buffers
 * (udt/mem.c) that are given back to the kernel are kept for the next one, with whatever they hold.
 * A scenario in virtual time takes and drops tens of megabytes within some milliseconds, and half
 * of its time would go into zeroed pages. Bounded; every other map goes to the kernel as it is. */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEEN __attribute__((visibility("default")))
enum { KEPT = 256, SLAB_BYTES = 17 << 16 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT];
static int n_kept;

SEEN void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
    void *found = NULL;
    if (!at && len == SLAB_BYTES && flags == (MAP_PRIVATE | MAP_ANONYMOUS)) {
        pthread_mutex_lock(&mu);
        found = n_kept > 0 ? kept[--n_kept] : NULL;
        pthread_mutex_unlock(&mu);
    }
    if (found)
        return found;
    long got = syscall(SYS_mmap, at, len, prot, flags, fd, offset);
    return (void *)got; /* syscall() has made -1 of an error, which is MAP_FAILED */
}

SEEN int munmap(void *at, size_t len)
{
    bool taken = false;
    pthread_mutex_lock(&mu);
    if (len == SLAB_BYTES && n_kept < KEPT) {
        kept[n_kept++] = at;
        taken = true;
    }
    pthread_mutex_unlock(&mu);
    return taken ? 0 : (int)syscall(SYS_munmap, at, len);
}
