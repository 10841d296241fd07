/* Preloaded into a process: makes the n-th call of one kind on files below a folder fail. See failing_calls.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *call_name, *folder, *report;
static long first, last, error_number, seen;

__attribute__((constructor)) static void read_settings(void) {
    const char *program = getenv("FAIL_PROGRAM");
    char line[1 << 14];
    int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
    long size = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    for (long i = 0; i < size; i++)
        if (!line[i]) line[i] = ' ';
    line[size > 0 ? size : 0] = 0;
    if (!program || !strstr(line, program)) return;
    folder = getenv("FAIL_FOLDER");
    report = getenv("FAIL_REPORT");
    first = atol(getenv("FAIL_NUMBER"));
    last = first + atol(getenv("FAIL_COUNT")) - 1;
    error_number = atol(getenv("FAIL_ERRNO"));
    call_name = getenv("FAIL_CALL");
}

/* The path itself, also where it leads through the descriptor of a folder, as /proc/PID/fd/N/... does. */
static const char *resolve(const char *path, char *resolved) {
    const char *number = path && !strncmp(path, "/proc/", 6) ? strstr(path, "/fd/") : NULL;
    if (!number) return path;
    size_t length = number + 4 + strspn(number + 4, "0123456789") - path;
    char link[64];
    if (length >= sizeof link) return path;
    memcpy(link, path, length);
    link[length] = 0;
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, resolved, PATH_MAX - 1);
    if (size < 0 || size + strlen(path + length) >= PATH_MAX) return path;
    strcpy(resolved + size, path + length);
    return resolved;
}

static int fails(const char *name, const char *given) {
    char resolved[PATH_MAX];
    if (!call_name || strcmp(name, call_name)) return 0;
    const char *path = resolve(given, resolved);
    if (!path || strncmp(path, folder, strlen(folder))) return 0;
    long number = __sync_add_and_fetch(&seen, 1);
    if (number < first || number > last) return 0;
    char text[PATH_MAX + 64];
    int size = snprintf(text, sizeof text, "%s %ld %s\n", name, number, path);
    int fd = syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_CREAT | O_APPEND, 0600);
    syscall(SYS_write, fd, text, size);
    syscall(SYS_close, fd);
    errno = error_number;
    return 1;
}

static int fails_at(const char *name, int fd) {
    char link[64], path[PATH_MAX];
    if (!call_name || strcmp(name, call_name) || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    return fails(name, path);
}

#define NEXT(type, name) \
    static type next; \
    if (!next) next = (type)dlsym(RTLD_NEXT, name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        typedef int (*call)(const char *, int, mode_t); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        NEXT(call, #name); \
        return fails(flags & O_CREAT ? "create" : "open", path) ? -1 : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define WRITE(name, ...) \
    ssize_t name(int fd, const void *data, size_t size __VA_OPT__(, ) __VA_ARGS__)
WRITE(write) {
    typedef ssize_t (*call)(int, const void *, size_t);
    NEXT(call, "write");
    return fails_at("write", fd) ? -1 : next(fd, data, size);
}
#define PWRITE(name) \
    WRITE(name, off_t offset) { \
        typedef ssize_t (*call)(int, const void *, size_t, off_t); \
        NEXT(call, #name); \
        return fails_at("write", fd) ? -1 : next(fd, data, size, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define SYNC(name) \
    int name(int fd) { \
        typedef int (*call)(int); \
        NEXT(call, #name); \
        return fails_at("fsync", fd) ? -1 : next(fd); \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    typedef int (*call)(const char *, const char *);
    NEXT(call, "rename");
    return fails("rename", to) ? -1 : next(from, to);
}

#define MAP(name) \
    void *name(void *at, size_t size, int protection, int flags, int fd, off_t offset) { \
        typedef void *(*call)(void *, size_t, int, int, int, off_t); \
        NEXT(call, #name); \
        return fails_at("mmap", fd) ? MAP_FAILED : next(at, size, protection, flags, fd, offset); \
    }
MAP(mmap)
MAP(mmap64)
