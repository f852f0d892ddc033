// Small messages over ZeroMQ and libudt, for bench_gmp, which loads this library where it was
// built: ./dev bench installs what it needs.
#include <arpa/inet.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <udt.h>
#include <unistd.h>
#include <vector>
#include <zmq.h>

namespace
{

void say(int report, uint16_t port)
{
    if (write(report, &port, sizeof port) != sizeof port)
        exit(1);
    close(report);
}

// ---- ZeroMQ: REQ and REP over TCP ----
void zmq_serve_all(size_t bytes, int report)
{
    std::vector<char> buf(bytes);
    void *s = zmq_socket(zmq_ctx_new(), ZMQ_REP);
    char at[64];
    size_t len = sizeof at;
    if (zmq_bind(s, "tcp://127.0.0.1:*") < 0 || zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, at, &len) < 0)
        exit(1);
    say(report, static_cast<uint16_t>(atoi(strrchr(at, ':') + 1)));
    for (;;) {
        int n = zmq_recv(s, buf.data(), bytes, 0);
        if (n >= 0)
            zmq_send(s, buf.data(), static_cast<size_t>(n), 0);
    }
}

void *zmq_meet(uint16_t port)
{
    char at[64];
    int none = 0;
    void *s = zmq_socket(zmq_ctx_new(), ZMQ_REQ);
    zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
    snprintf(at, sizeof at, "tcp://127.0.0.1:%u", port);
    return zmq_connect(s, at) < 0 ? nullptr : s;
}

bool zmq_round(void *s, char *buf, size_t bytes)
{
    return zmq_send(s, buf, bytes, 0) == static_cast<int>(bytes) &&
           zmq_recv(s, buf, bytes, 0) == static_cast<int>(bytes);
}

// ---- libudt: a stream ----
bool udt_send_all(UDTSOCKET s, const char *p, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        int n = UDT::send(s, p + done, static_cast<int>(bytes - done), 0);
        if (n <= 0)
            return false;
        done += static_cast<size_t>(n);
    }
    return true;
}

bool udt_recv_all(UDTSOCKET s, char *p, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        int n = UDT::recv(s, p + done, static_cast<int>(bytes - done), 0);
        if (n <= 0)
            return false;
        done += static_cast<size_t>(n);
    }
    return true;
}

sockaddr_in here(uint16_t port)
{
    sockaddr_in a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

void udt_serve_all(size_t bytes, int report)
{
    std::vector<char> buf(bytes);
    UDT::startup();
    UDTSOCKET l = UDT::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = here(0);
    int len = sizeof a;
    if (UDT::bind(l, reinterpret_cast<sockaddr *>(&a), sizeof a) == UDT::ERROR ||
        UDT::listen(l, 1) == UDT::ERROR ||
        UDT::getsockname(l, reinterpret_cast<sockaddr *>(&a), &len) == UDT::ERROR)
        exit(1);
    say(report, ntohs(a.sin_port));
    UDTSOCKET s = UDT::accept(l, nullptr, nullptr);
    while (udt_recv_all(s, buf.data(), bytes) && udt_send_all(s, buf.data(), bytes))
        ;
}

void *udt_meet(uint16_t port)
{
    static UDTSOCKET s;
    UDT::startup();
    s = UDT::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = here(port);
    if (UDT::connect(s, reinterpret_cast<sockaddr *>(&a), sizeof a) == UDT::ERROR)
        return nullptr;
    return &s;
}

bool udt_round(void *p, char *buf, size_t bytes)
{
    UDTSOCKET s = *static_cast<UDTSOCKET *>(p);
    return udt_send_all(s, buf, bytes) && udt_recv_all(s, buf, bytes);
}

} // namespace

extern "C" {
// `which`: 0 = ZeroMQ, 1 = libudt. serve writes its port to `report` and does not return.
__attribute__((visibility("default"))) void msg_peer_serve(int which, size_t bytes, int report)
{
    (which ? udt_serve_all : zmq_serve_all)(bytes, report);
    exit(0);
}
__attribute__((visibility("default"))) void *msg_peer_meet(int which, uint16_t port)
{
    return (which ? udt_meet : zmq_meet)(port);
}
__attribute__((visibility("default"))) bool msg_peer_round(int which, void *peer, char *buf,
                                                           size_t bytes)
{
    return (which ? udt_round : zmq_round)(peer, buf, bytes);
}
}
