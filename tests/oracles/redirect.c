/* Preloaded: redirects a program's look-ups of the driver's paths to the folder SIMULATED_ROOT. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const REDIRECTED[] = {"/sys/", "/dev/kfd", "/dev/dri", "/proc/cpuinfo", "/proc/modules"};

static const char *below(const char *path, char *buffer) {
    const char *root = getenv("SIMULATED_ROOT");
    for (size_t i = 0; root && path && i < sizeof REDIRECTED / sizeof *REDIRECTED; i++)
        if (!strncmp(path, REDIRECTED[i], strlen(REDIRECTED[i]))) {
            snprintf(buffer, PATH_MAX, "%s%s", root, path);
            return buffer;
        }
    return path;
}

#define REDIRECT(result, name, arguments, ...)                                   \
    result name arguments {                                                      \
        char buffer[PATH_MAX];                                                   \
        __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
        return next(__VA_ARGS__);                                                \
    }
#define PATH below(path, buffer)

REDIRECT(FILE *, fopen, (const char *path, const char *how), PATH, how)
REDIRECT(FILE *, fopen64, (const char *path, const char *how), PATH, how)
REDIRECT(DIR *, opendir, (const char *path), PATH)
REDIRECT(int, access, (const char *path, int how), PATH, how)
REDIRECT(int, stat, (const char *path, struct stat *to), PATH, to)
REDIRECT(int, lstat, (const char *path, struct stat *to), PATH, to)
REDIRECT(int, stat64, (const char *path, struct stat64 *to), PATH, to)
REDIRECT(ssize_t, readlink, (const char *path, char *to, size_t room), PATH, to, room)
REDIRECT(char *, realpath, (const char *path, char *to), PATH, to)

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name, path, flags, ...)                                             \
    char buffer[PATH_MAX];                                                       \
    va_list rest;                                                                \
    va_start(rest, flags);                                                       \
    mode_t mode = mode_of(flags, rest);                                          \
    va_end(rest);                                                                \
    return ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__, flags, mode);

int open(const char *path, int flags, ...) { OPEN(open, path, flags, PATH) }
int open64(const char *path, int flags, ...) { OPEN(open64, path, flags, PATH) }
int openat(int at, const char *path, int flags, ...) { OPEN(openat, path, flags, at, PATH) }
