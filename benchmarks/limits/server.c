/* The least a broker has to do, and nothing else: one thread, one epoll.
 *
 *     server answer BYTES            reads frames, answers each with BYTES
 *     server write  BYTES FILE       and pwritev's each frame's last part to FILE before it answers
 *     server send   FILE             a frame is (int64 position, int32 size): sendfile of that part
 *
 * `write` takes the crc32c of what it writes first: a broker must not store what was damaged. The
 * head of a Produce frame is not parsed: what is left out of a frame is HEAD bytes of it.
 * Prints the port it listens on. Ends with its standard input. Linux.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 48, BUFFER = 4 << 20 };

struct connection {
    int fd;
    size_t have;
    unsigned char bytes[BUFFER];
};

static int log_fd = -1, sends, writes;
static off_t log_end;
static uint32_t answer_bytes, table[256];
static unsigned char answer[1 << 16];
static volatile uint32_t checked;

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c(const unsigned char *data, size_t size) {
    uint64_t crc = 0xffffffff, word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size; data++, size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}
#else
static uint32_t crc32c(const unsigned char *data, size_t size) {
    uint32_t crc = 0xffffffff;
    for (; size; data++, size--)
        crc = table[(crc ^ *data) & 255] ^ (crc >> 8);
    return ~crc;
}
#endif

static void make_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
        table[n] = crc;
    }
}

/* The peer reads what it asked for before it asks for more: a short wait is all a full socket needs. */
static void write_all(int fd, const unsigned char *data, size_t size) {
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EPIPE)
            return;
        check(sent >= 0, "send");
        data += sent, size -= sent;
    }
}

static void send_part(int fd, const unsigned char *frame) {
    uint64_t position;
    uint32_t size;
    memcpy(&position, frame + 4, 8);
    memcpy(&size, frame + 12, 4);
    off_t at = (off_t)be64toh(position);
    size_t left = be32toh(size);
    write_all(fd, frame + 12, 4);
    while (left) {
        ssize_t sent = sendfile(fd, log_fd, &at, left);
        check(sent > 0, "sendfile");
        left -= sent;
    }
}

static void serve(int fd, unsigned char *frame, size_t size) {
    if (sends) {
        send_part(fd, frame);
        return;
    }
    if (writes) {
        size_t head = size > HEAD ? HEAD : 0;
        struct iovec part = {frame + head, size - head};
        checked ^= crc32c(part.iov_base, part.iov_len);
        check(pwritev(log_fd, &part, 1, log_end) == (ssize_t)part.iov_len, "pwritev");
        log_end += part.iov_len;
    }
    write_all(fd, answer, answer_bytes);
}

/* 0 when the peer has closed. */
static int receive(struct connection *from) {
    ssize_t got = recv(from->fd, from->bytes + from->have, BUFFER - from->have, MSG_DONTWAIT);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    from->have += got;
    size_t at = 0;
    uint32_t size;
    while (from->have - at >= 4) {
        memcpy(&size, from->bytes + at, 4);
        size_t whole = 4 + (size_t)ntohl(size);
        check(whole <= BUFFER, "frame too large");
        if (from->have - at < whole)
            break;
        serve(from->fd, from->bytes + at, whole);
        at += whole;
    }
    from->have -= at;
    memmove(from->bytes, from->bytes + at, from->have);
    return 1;
}

static int listen_anywhere(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 1024) == 0, "listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void watch(int poll, int fd, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    check(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

int main(int count, char **words) {
    check(count >= 3, "server answer|write|send ...");
    writes = !strcmp(words[1], "write");
    sends = !strcmp(words[1], "send");
    if (sends)
        check((log_fd = open(words[2], O_RDONLY)) >= 0, words[2]);
    else
        check((answer_bytes = atoi(words[2])) <= sizeof answer, "an answer this large");
    if (writes)
        check(count > 3 && (log_fd = open(words[3], O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0, "FILE");
    uint32_t size = htonl(answer_bytes - 4);
    memcpy(answer, &size, 4);
    make_table();
    int listener = listen_anywhere(), poll = epoll_create1(0), one = 1;
    static char input, accepting;
    watch(poll, listener, &accepting);
    watch(poll, 0, &input);
    for (;;) {
        struct epoll_event ready[64];
        int found = epoll_wait(poll, ready, 64, -1);
        for (int n = 0; n < found; n++) {
            if (ready[n].data.ptr == &input)
                return 0;
            if (ready[n].data.ptr == &accepting) {
                struct connection *fresh = malloc(sizeof *fresh);
                check(fresh != NULL, "malloc");
                fresh->have = 0;
                check((fresh->fd = accept(listener, NULL, NULL)) >= 0, "accept");
                setsockopt(fresh->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                watch(poll, fresh->fd, fresh);
                continue;
            }
            struct connection *from = ready[n].data.ptr;
            if (!receive(from)) {
                close(from->fd);
                free(from);
            }
        }
    }
}
