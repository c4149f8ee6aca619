/* Preloaded into programs: the time of day is $MINISANDBOX_CLOCK seconds away from the real one.
 * It goes on as the real one does; monotonic clocks and the dates of files stay what they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void)
{
    static long seconds;
    static int known;
    if (!known) {
        const char *text = getenv("MINISANDBOX_CLOCK");
        seconds = text ? atol(text) : 0;
        known = 1;
    }
    return seconds;
}

/* The kernel's own: what is defined below would call itself. */
static int real(clockid_t id, struct timespec *now)
{
    return (int)syscall(SYS_clock_gettime, id, now);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}

/* Locks with a time limit (those of Python before 3.11): the deadline is one of the shown clock. */
int sem_timedwait(sem_t *restrict lock, const struct timespec *restrict deadline)
{
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec real_one = *deadline;
    if (!next)
        next = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    if (!next) {
        errno = ENOSYS;
        return -1;
    }
    real_one.tv_sec -= offset();
    return next(lock, &real_one);
}
