/* Fails chosen system calls below one directory: loaded into a process by LD_PRELOAD.
 *
 * FAILING_DISK names a file whose first bytes say what fails now; `chaos/rig/failing_disk.py` writes it and
 * has the same layout and bits. FAILING_DISK_UNDER names the directory.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#undef fread_unlocked

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, SYNC = 16, RENAME = 32, REMOVE = 64, MAKE = 128, LIST = 256, LOCK = 512, STAT = 1024 };

struct control {
    int32_t error;    /* errno; 0: nothing fails */
    uint32_t calls;   /* which calls fail, as bits */
    int32_t after;    /* calls that still succeed before the first that fails */
    int32_t times;    /* calls that fail before all succeed again */
    uint32_t refused; /* calls that have failed */
    char match[44];   /* part of the path; empty: each path */
};

static volatile struct control *control;
static const char *under;
static size_t under_length;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAILING_DISK");
    under = getenv("FAILING_DISK_UNDER");
    if (file == NULL || under == NULL) return;
    under_length = strlen(under);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found != MAP_FAILED) control = found;
}

/* Whether a call fails that is armed; errno is set then. */
static int refused(const char *path) {
    int error = control->error;
    if (error == 0 || strncmp(path, under, under_length) != 0) return 0;
    if (control->match[0] != 0 && strstr(path, (const char *)control->match) == NULL) return 0;
    if (__atomic_fetch_sub(&control->after, 1, __ATOMIC_SEQ_CST) > 0) return 0;
    if (__atomic_fetch_sub(&control->times, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
    __atomic_fetch_add(&control->refused, 1, __ATOMIC_SEQ_CST);
    errno = error;
    return 1;
}

static int armed(unsigned call) { return control != NULL && control->error != 0 && (control->calls & call); }

static int path_fails(unsigned call, const char *path) { return armed(call) && path != NULL && refused(path); }

static int fd_fails(unsigned call, int fd) {
    if (!armed(call)) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return refused(path);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRAP(result, name, parameters, arguments, fails, failed) \
    result name parameters {                                      \
        if (fails) return failed;                                 \
        static __typeof__(&name) real;                            \
        if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        return real arguments;                                    \
    }

static unsigned opens(int flags) { return (flags & O_ACCMODE) == O_RDONLY ? OPEN : CREATE; }

#define WRAP_OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                            \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        if (path_fails(opens(flags), path)) return -1;                      \
        REAL(name);                                                         \
        return real(path, flags, mode);                                     \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_FOPEN(name)                                                                  \
    FILE *name(const char *path, const char *mode) {                                      \
        if (path_fails(mode[0] == 'r' && mode[1] != '+' ? OPEN : CREATE, path)) return NULL; \
        REAL(name);                                                                       \
        return real(path, mode);                                                          \
    }
WRAP_FOPEN(fopen)
WRAP_FOPEN(fopen64)

WRAP(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), fd_fails(READ, fd), -1)
WRAP(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), fd_fails(READ, fd), -1)
WRAP(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at), fd_fails(READ, fd), -1)
WRAP(size_t, fread_unlocked, (void *data, size_t size, size_t n, FILE *file), (data, size, n, file), fd_fails(READ, fileno(file)), 0)
WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fd_fails(WRITE, fd), -1)
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), fd_fails(WRITE, fd), -1)
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), fd_fails(WRITE, fd), -1)
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), fd_fails(WRITE, fd), -1)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), fd_fails(WRITE, fd), -1)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), fd_fails(WRITE, fd), -1)
WRAP(int, fsync, (int fd), (fd), fd_fails(SYNC, fd), -1)
WRAP(int, fdatasync, (int fd), (fd), fd_fails(SYNC, fd), -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), path_fails(RENAME, from), -1)
WRAP(int, link, (const char *from, const char *to), (from, to), path_fails(RENAME, from), -1)
WRAP(int, unlink, (const char *path), (path), path_fails(REMOVE, path), -1)
WRAP(int, rmdir, (const char *path), (path), path_fails(REMOVE, path), -1)
WRAP(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), path[0] == '/' ? path_fails(REMOVE, path) : fd_fails(REMOVE, at), -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), path_fails(MAKE, path), -1)
WRAP(DIR *, opendir, (const char *path), (path), path_fails(LIST, path), NULL)
WRAP(int, access, (const char *path, int mode), (path, mode), path_fails(STAT, path), -1)
WRAP(int, stat, (const char *path, struct stat *found), (path, found), path_fails(STAT, path), -1)
WRAP(int, stat64, (const char *path, struct stat64 *found), (path, found), path_fails(STAT, path), -1)

int __xstat(int version, const char *path, struct stat *found);
int __xstat64(int version, const char *path, struct stat64 *found);
WRAP(int, __xstat, (int version, const char *path, struct stat *found), (version, path, found), path_fails(STAT, path), -1)
WRAP(int, __xstat64, (int version, const char *path, struct stat64 *found), (version, path, found), path_fails(STAT, path), -1)

/* RocksDB's lock on its directory. */
int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_SETLK && fd_fails(LOCK, fd)) return -1;
    REAL(fcntl);
    return real(fd, command, argument);
}
