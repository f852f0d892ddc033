/* A thread that has handed a command over and not yet woken the loop, when all is over already. */
#include "io/priv.h"
#include "test_io.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

ssize_t __real_write(int fd, const void *buf, size_t n);
ssize_t __wrap_write(int fd, const void *buf, size_t n);

/* The write of this thread waits between 1 and 2. */
static _Thread_local bool held;
static _Atomic int stage;

ssize_t __wrap_write(int fd, const void *buf, size_t n)
{
    if (held) {
        atomic_store(&stage, 1);
        while (atomic_load(&stage) != 2)
            usleep(100);
    }
    return __real_write(fd, buf, n);
}

struct late {
    tio *a;
    int32_t sock;
};

static void *send_late(void *arg)
{
    static const uint8_t byte;
    struct late *l = arg;
    held = true;
    CHECK_INT(udt_send(l->a->ctx, l->sock, &byte, 1), 1);
    held = false;
    return NULL;
}

TEST(io_a_late_wake_up_goes_to_nobody_else)
{
    tio *a = tio_open(4, 0), *b = tio_open(4, 0);
    udt_sock_opts o = {.type = 1};
    struct late l = {.a = a};
    int32_t sb;
    uint16_t ignored;
    int udp = tio_udp(&ignored), file[64], n = 0;
    pthread_t th;
    tio_pair(a, b, &o, &l.sock, &sb);
    io_port *p = io_handle_get(a->ctx, a->port, IO_KIND_PORT, NULL);
    int evfd = p->evfd;
    while (!atomic_load(&p->sleeping))
        usleep(1000);
    io_handle_put(a->ctx, a->port);
    atomic_store(&stage, 0);
    CHECK_INT(pthread_create(&th, NULL, send_late, &l), 0);
    while (atomic_load(&stage) != 1)
        usleep(100);
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons(a->at.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK_INT(sendto(udp, "x", 1, 0, (struct sockaddr *)&in, sizeof in), 1); /* it looks around */
    tio_wait(b, UDT_IO_READABLE, sb, 5000);
    CHECK_INT(udt_port_close(a->ctx, a->port), 0);
    tio_wait(a, UDT_IO_CLOSED, l.sock, 5000);
    do /* whatever is opened now gets the lowest free numbers */
        CHECK((file[n] = memfd_create("other", MFD_CLOEXEC)) >= 0);
    while (file[n++] < evfd && n < 64);
    atomic_store(&stage, 2);
    CHECK_INT(pthread_join(th, NULL), 0);
    while (n-- > 0) {
        struct stat st;
        CHECK_INT(fstat(file[n], &st), 0);
        CHECK_INT(st.st_size, 0);
        close(file[n]);
    }
    close(udp);
    tio_free(a);
    tio_free(b);
}

/* A socket that failed outlives its port, and is the last that keeps it. */
TEST(io_a_socket_is_closed_after_its_port)
{
    for (uint32_t flags = 0; flags < 2; flags++) {
        tio *a = tio_open(4, flags ? UDT_PORT_MANUAL : 0);
        uint16_t nobody;
        close(tio_udp(&nobody));
        udt_addr to = tio_loopback(4, nobody);
        int32_t s = udt_connect(a->ctx, a->port, &to, NULL);
        udt_event ev;
        for (int64_t t0 = tio_now_us(); !tio_take(a, UDT_IO_FAILED, s, &ev);) {
            CHECK(tio_now_us() - t0 < 10000000);
            CHECK(!flags || udt_port_run(a->ctx, a->port, 1000) == 0);
            tio_pull(a, flags ? 0 : 10000);
        }
        CHECK_INT(ev.err, UDT_E_UNREACHABLE);
        usleep(20000);
        CHECK_INT(udt_port_close(a->ctx, a->port), 0);
        CHECK_INT(udt_close(a->ctx, s, 0), 0);
        tio_pull(a, 0);
        CHECK(tio_take(a, UDT_IO_CLOSED, s, &ev));
        tio_free(a);
    }
}
