/* A disk that does not answer: calls on files below HELD_FOLDER wait while HELD_FLAG exists.
 *
 * Loaded by LD_PRELOAD. Each call that has to wait adds a line with its path to HELD_LOG.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_for_disk(const char *path) {
    const char *folder = getenv("HELD_FOLDER");
    const char *flag = getenv("HELD_FLAG");
    const char *log = getenv("HELD_LOG");
    if (!folder || !flag || !log || !path || strncmp(path, folder, strlen(folder)) != 0 ||
        access(flag, F_OK) != 0) {
        return;
    }
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    ssize_t (*real_write)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    int file = real_open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) {
        char line[4097];
        int length = snprintf(line, sizeof line, "%s\n", path);
        if (real_write(file, line, length) < 0) {
            perror("held_disk");
        }
        close(file);
    }
    while (access(flag, F_OK) == 0) {
        usleep(10000);
    }
}

static void wait_for_descriptor(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        wait_for_disk(path);
    }
}

#define OPEN(name, before, path, ...)                                \
    {                                                                \
        mode_t mode = 0;                                             \
        if (flags & (O_CREAT | __O_TMPFILE)) {                       \
            va_list more;                                            \
            va_start(more, flags);                                   \
            mode = va_arg(more, mode_t);                             \
            va_end(more);                                            \
        }                                                            \
        wait_for_disk(path);                                         \
        int (*real) before = dlsym(RTLD_NEXT, #name);                \
        return real(__VA_ARGS__, flags, mode);                       \
    }

int open(const char *path, int flags, ...) OPEN(open, (const char *, int, ...), path, path)
int open64(const char *path, int flags, ...) OPEN(open64, (const char *, int, ...), path, path)
int openat(int folder, const char *path, int flags, ...)
    OPEN(openat, (int, const char *, int, ...), path, folder, path)
int openat64(int folder, const char *path, int flags, ...)
    OPEN(openat64, (int, const char *, int, ...), path, folder, path)

#define CALL(type, name, parameters, arguments)                      \
    type name parameters {                                           \
        wait_for_descriptor(descriptor);                             \
        type(*real) parameters = dlsym(RTLD_NEXT, #name);            \
        return real arguments;                                       \
    }

#define PATH_CALL(name, parameters, arguments)                       \
    int name parameters {                                            \
        wait_for_disk(path);                                         \
        int(*real) parameters = dlsym(RTLD_NEXT, #name);             \
        return real arguments;                                       \
    }

PATH_CALL(stat64, (const char *path, struct stat64 *found), (path, found))
PATH_CALL(lstat64, (const char *path, struct stat64 *found), (path, found))
PATH_CALL(mkdir, (const char *path, mode_t mode), (path, mode))
PATH_CALL(rename, (const char *path, const char *target), (path, target))
PATH_CALL(unlink, (const char *path), (path))

CALL(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
CALL(ssize_t, writev, (int descriptor, const struct iovec *parts, int count),
     (descriptor, parts, count))
CALL(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at),
     (descriptor, data, size, at))
CALL(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at),
     (descriptor, data, size, at))
CALL(ssize_t, pwritev, (int descriptor, const struct iovec *parts, int count, off_t at),
     (descriptor, parts, count, at))
CALL(ssize_t, pwritev64, (int descriptor, const struct iovec *parts, int count, off64_t at),
     (descriptor, parts, count, at))
CALL(ssize_t, pwritev64v2,
     (int descriptor, const struct iovec *parts, int count, off64_t at, int flags),
     (descriptor, parts, count, at, flags))
CALL(ssize_t, preadv64v2,
     (int descriptor, const struct iovec *parts, int count, off64_t at, int flags),
     (descriptor, parts, count, at, flags))
CALL(int, fsync, (int descriptor), (descriptor))
CALL(int, fdatasync, (int descriptor), (descriptor))
