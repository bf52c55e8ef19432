/*
 * Loaded before libc (LD_PRELOAD): makes fsync or write fail where a control file says so.
 *
 * The file named by FAULTS_CONTROL, when it is there, holds
 *     OPERATION ERRNO SKIP PART
 * OPERATION is fsync (fsync and fdatasync) or write (all that makes a file longer); the call fails
 * with ERRNO when the open file's path contains PART, after SKIP such calls have been let through.
 * Each failure appends one byte to FAULTS_CONTROL.hits, which proves that the fault was met.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int let_through;

static int fault(const char *operation, int fd)
{
    char text[512], name[64], path[512], wanted[16], part[256];
    int code, skip;
    const char *control = getenv("FAULTS_CONTROL");
    if (control == NULL)
        return 0;
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    if (count <= 0)
        return 0;
    text[count] = 0;
    if (sscanf(text, "%15s %d %d %255s", wanted, &code, &skip, part) != 4)
        return 0;
    if (strcmp(wanted, operation) != 0)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    count = readlink(name, path, sizeof path - 1);
    if (count <= 0)
        return 0;
    path[count] = 0;
    if (strstr(path, part) == NULL || atomic_fetch_add(&let_through, 1) < skip)
        return 0;
    snprintf(path, sizeof path, "%s.hits", control);
    file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0) {
        syscall(SYS_write, file, "x", 1);
        close(file);
    }
    return code;
}

#define FAIL_OR_CALL(operation, result, name, types, arguments)                                    \
    result name types                                                                              \
    {                                                                                              \
        static result(*real) types;                                                                \
        if (real == NULL)                                                                          \
            real = (result(*) types)dlsym(RTLD_NEXT, #name);                                       \
        int code = fault(operation, fd);                                                           \
        if (code != 0) {                                                                           \
            errno = code;                                                                          \
            return -1;                                                                             \
        }                                                                                          \
        return real arguments;                                                                     \
    }

FAIL_OR_CALL("fsync", int, fsync, (int fd), (fd))
FAIL_OR_CALL("fsync", int, fdatasync, (int fd), (fd))
FAIL_OR_CALL("write", ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAIL_OR_CALL("write", ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at),
             (fd, data, size, at))
FAIL_OR_CALL("write", ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at),
             (fd, data, size, at))
FAIL_OR_CALL("write", ssize_t, writev, (int fd, const struct iovec *parts, int count),
             (fd, parts, count))
FAIL_OR_CALL("write", ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at),
             (fd, parts, count, at))
FAIL_OR_CALL("write", ssize_t, pwritev64,
             (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
FAIL_OR_CALL("write", int, ftruncate, (int fd, off_t size), (fd, size))
FAIL_OR_CALL("write", int, ftruncate64, (int fd, off64_t size), (fd, size))
FAIL_OR_CALL("write", ssize_t, pwritev2,
             (int fd, const struct iovec *parts, int count, off_t at, int flags),
             (fd, parts, count, at, flags))
FAIL_OR_CALL("write", ssize_t, pwritev64v2,
             (int fd, const struct iovec *parts, int count, off64_t at, int flags),
             (fd, parts, count, at, flags))
