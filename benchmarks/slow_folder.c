/* Preloaded: makes files of a results folder slow, and hides files that were just created, as NFS does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int ours(const char *path)
{
    return path && (strstr(path, "/results/") || !strncmp(path, "results/", 8));
}

/* Return whether a file is younger than STALE_SECONDS; never in a job, because jobs see their own files at once. */
static int unseen(const char *path)
{
    static int (*real)(const char *, struct stat *);
    const char *seconds = getenv("STALE_SECONDS"), *name = strrchr(path, '/');
    struct stat status;
    if (!seconds || getenv("SLURM_JOB_ID") || !name)
        return 0;
    if (strcmp(name, "/record.json") && strcmp(name, "/intent.json"))
        return 0;
    if (!real)
        real = dlsym(RTLD_NEXT, "stat");
    return !real(path, &status) && time(NULL) - status.st_ctime < atoi(seconds);
}

static int late(const char *path)
{
    if (!ours(path))
        return 0;
    usleep(rand() % 200 ? rand() % 4000 : 500000);
    return unseen(path);
}

#define STAT(name, kind)                                                       \
    int name(const char *path, struct kind *status)             \
    {                                                                    \
        static int (*real)(const char *, struct kind *);                 \
        if (!real)                                                       \
            real = dlsym(RTLD_NEXT, #name);                              \
        return late(path) ? (errno = ENOENT, -1) : real(path, status);   \
    }
STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...)                           \
    {                                                                    \
        static int (*real)(const char *, int, ...);                      \
        va_list rest;                                                    \
        if (!real)                                                       \
            real = dlsym(RTLD_NEXT, #name);                              \
        va_start(rest, flags);                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                    \
        if (late(path) && !(flags & O_CREAT))                            \
            return errno = ENOENT, -1;                                   \
        return real(path, flags, mode);                                  \
    }
OPEN(open)
OPEN(open64)
