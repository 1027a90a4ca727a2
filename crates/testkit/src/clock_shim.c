/* Steps the wall clock of one server process: CLOCK_REALTIME plus the nanoseconds found in a shared file. Loaded with LD_PRELOAD.
 * The system calls are made directly: looking the real functions up may allocate, and an allocator may read the clock while
 * it starts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

static volatile int64_t no_offset = 0;
static volatile int64_t *offset = NULL;

static int64_t offset_now(void) {
    if (offset == NULL) {
        const char *path = getenv("SYNCGUARD_CLOCK_FILE");
        int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        offset = mapped == MAP_FAILED ? &no_offset : (volatile int64_t *)mapped;
    }
    return *offset;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t shifted = (int64_t)out->tv_sec * BILLION + out->tv_nsec + offset_now();
        out->tv_sec = shifted / BILLION;
        out->tv_nsec = shifted % BILLION;
    }
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0 && out != NULL) {
        out->tv_sec = now.tv_sec;
        out->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
