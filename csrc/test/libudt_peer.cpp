// The foreign peer of interoperation tests and benchmarks: Debian's libudt behind a small command
// line.
//
//   libudt_peer (listen PORT | connect HOST PORT | rendezvous LOCAL_PORT HOST PORT)
//               (--send FILE | --recv FILE | --bench-send SECONDS | --bench-recv)
//               [--message] [--pause SECONDS] [--hold SECONDS] [--buf BYTES] [--seconds S]
//               [--abandon]
//
// --buf sets the buffers and the flow window (default: the library's). --seconds ends --bench-recv
// that long after the connection, --abandon closes without waiting for what is still unsent.
// --pause waits before the first send or receive, --hold before the close.
// FILE is a byte stream; with --message it is a row of u32 big-endian length + payload, one per
// message. Prints one JSON line with bytes, seconds and CPU seconds at the end.
#include "bench_util.h"

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <string>
#include <sys/resource.h>
#include <udt.h>
#include <unistd.h>
#include <vector>

using Clock = std::chrono::steady_clock;

static void die(const char *what)
{
    fprintf(stderr, "libudt_peer: %s: %s\n", what, UDT::getlasterror().getErrorMessage());
    exit(1);
}

static sockaddr_in address(const char *host, const char *port)
{
    sockaddr_in a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(atoi(port)));
    inet_pton(AF_INET, host, &a.sin_addr);
    return a;
}

static double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Args {
    std::string role, file;
    std::vector<const char *> where;
    bool message = false, send = false, bench = false;
    bool abandon = false, any = false;
    double bench_seconds = 0, pause = 0, hold = 0;
    int buf = 0;
};

static bench_series series;

static Args parse(int argc, char **argv)
{
    Args a;
    for (int i = 1; i < argc; i++) {
        std::string s = argv[i];
        if (s == "--message")
            a.message = true;
        else if (s == "--send" && i + 1 < argc)
            a.send = true, a.file = argv[++i];
        else if (s == "--recv" && i + 1 < argc)
            a.file = argv[++i];
        else if (s == "--bench-send" && i + 1 < argc)
            a.send = a.bench = true, a.bench_seconds = atof(argv[++i]);
        else if (s == "--pause" && i + 1 < argc)
            a.pause = atof(argv[++i]);
        else if (s == "--hold" && i + 1 < argc)
            a.hold = atof(argv[++i]);
        else if (s == "--bench-recv")
            a.bench = true;
        else if (s == "--seconds" && i + 1 < argc)
            a.bench_seconds = atof(argv[++i]);
        else if (s == "--buf" && i + 1 < argc)
            a.buf = atoi(argv[++i]);
        else if (s == "--any")
            a.any = true;
        else if (s == "--abandon")
            a.abandon = true;
        else if (a.role.empty())
            a.role = s;
        else
            a.where.push_back(argv[i]);
    }
    size_t want = a.role == "listen"       ? 1
                  : a.role == "connect"    ? 2
                  : a.role == "rendezvous" ? 3
                                           : 99;
    if (a.where.size() != want || (a.file.empty() && !a.bench)) {
        fprintf(stderr,
                "usage: libudt_peer listen PORT | connect HOST PORT | rendezvous LPORT HOST PORT "
                "(--send FILE | --recv FILE | --bench-send S | --bench-recv) [--message] "
                "[--pause S] [--hold S] [--any]\n");
        exit(2);
    }
    return a;
}

static UDTSOCKET socket_of(const Args &a)
{
    UDTSOCKET s = UDT::socket(AF_INET, a.message ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (a.buf) {
        int packets = a.buf / 1456 + 1;
        UDT::setsockopt(s, 0, UDT_FC, &packets, sizeof packets);
        UDT::setsockopt(s, 0, UDT_SNDBUF, &a.buf, sizeof a.buf);
        UDT::setsockopt(s, 0, UDT_RCVBUF, &a.buf, sizeof a.buf);
    }
    if (a.abandon) {
        linger none = {0, 0};
        UDT::setsockopt(s, 0, UDT_LINGER, &none, sizeof none);
    }
    return s;
}

static UDTSOCKET meet(const Args &a)
{
    UDTSOCKET s = socket_of(a);
    if (a.role == "connect") {
        sockaddr_in to = address(a.where[0], a.where[1]);
        if (UDT::ERROR == UDT::connect(s, reinterpret_cast<sockaddr *>(&to), sizeof to))
            die("connect");
        return s;
    }
    if (a.role == "rendezvous") {
        bool on = true;
        UDT::setsockopt(s, 0, UDT_RENDEZVOUS, &on, sizeof on);
        sockaddr_in here = address("127.0.0.1", a.where[0]), to = address(a.where[1], a.where[2]);
        if (UDT::ERROR == UDT::bind(s, reinterpret_cast<sockaddr *>(&here), sizeof here))
            die("bind");
        if (UDT::ERROR == UDT::connect(s, reinterpret_cast<sockaddr *>(&to), sizeof to))
            die("rendezvous");
        return s;
    }
    sockaddr_in here = address(a.bench || a.any ? "0.0.0.0" : "127.0.0.1", a.where[0]);
    if (UDT::ERROR == UDT::bind(s, reinterpret_cast<sockaddr *>(&here), sizeof here))
        die("bind");
    if (UDT::ERROR == UDT::listen(s, 4))
        die("listen");
    printf("ready\n");
    fflush(stdout);
    sockaddr_in from;
    int len = sizeof from;
    UDTSOCKET c = UDT::accept(s, reinterpret_cast<sockaddr *>(&from), &len);
    if (c == UDT::INVALID_SOCK)
        die("accept");
    return c;
}

static void send_all(UDTSOCKET s, const char *data, int len)
{
    for (int done = 0; done < len;) {
        int n = UDT::send(s, data + done, len - done, 0);
        if (n == UDT::ERROR)
            die("send");
        done += n;
    }
}

static int64_t send_file(UDTSOCKET s, const Args &a)
{
    FILE *f = fopen(a.file.c_str(), "rb");
    if (!f) {
        perror(a.file.c_str());
        exit(1);
    }
    int64_t total = 0;
    std::vector<char> buf(1 << 24);
    for (;;) {
        size_t n;
        if (a.message) {
            uint8_t head[4];
            if (fread(head, 1, 4, f) != 4)
                break;
            n = static_cast<size_t>(head[0]) << 24 | static_cast<size_t>(head[1]) << 16 |
                static_cast<size_t>(head[2]) << 8 | head[3];
            if (n > buf.size() || fread(buf.data(), 1, n, f) != n)
                break;
            if (UDT::ERROR == UDT::sendmsg(s, buf.data(), static_cast<int>(n), -1, true))
                die("sendmsg");
        } else {
            n = fread(buf.data(), 1, 1 << 20, f);
            if (n == 0)
                break;
            send_all(s, buf.data(), static_cast<int>(n));
        }
        total += static_cast<int64_t>(n);
    }
    fclose(f);
    return total;
}

static int64_t recv_file(UDTSOCKET s, const Args &a)
{
    FILE *f = fopen(a.file.c_str(), "wb");
    if (!f) {
        perror(a.file.c_str());
        exit(1);
    }
    int64_t total = 0;
    std::vector<char> buf(1 << 24);
    for (;;) {
        int n = a.message ? UDT::recvmsg(s, buf.data(), static_cast<int>(buf.size()))
                          : UDT::recv(s, buf.data(), 1 << 20, 0);
        if (n == UDT::ERROR)
            break;
        if (a.message) {
            uint32_t u = static_cast<uint32_t>(n);
            uint8_t head[4] = {static_cast<uint8_t>(u >> 24), static_cast<uint8_t>(u >> 16),
                               static_cast<uint8_t>(u >> 8), static_cast<uint8_t>(u)};
            fwrite(head, 1, 4, f);
        }
        fwrite(buf.data(), 1, static_cast<size_t>(n), f);
        fflush(f);
        total += n;
    }
    fclose(f);
    return total;
}

static void bench(UDTSOCKET s, const Args &a)
{
    std::vector<char> buf(1 << 20);
    bool limited = a.bench_seconds > 0;
    int wait_ms = 200;
    UDT::setsockopt(s, 0, a.send ? UDT_SNDTIMEO : UDT_RCVTIMEO, &wait_ms, sizeof wait_ms);
    while (!limited || static_cast<double>(bench_now_us() - series.t0) < a.bench_seconds * 1e6) {
        int n =
            a.send ? UDT::send(s, buf.data(), 1 << 18, 0) : UDT::recv(s, buf.data(), 1 << 20, 0);
        if (n > 0)
            bench_count(&series, n);
        else if (n == UDT::ERROR && UDT::getlasterror().getErrorCode() != CUDTException::ETIMEOUT)
            break;
    }
}

static int64_t retransmissions(UDTSOCKET s)
{
    UDT::TRACEINFO info;
    return UDT::ERROR == UDT::perfmon(s, &info, false) ? 0 : info.pktRetransTotal;
}

int main(int argc, char **argv)
{
    Args a = parse(argc, argv);
    UDT::startup();
    UDTSOCKET s = meet(a);
    usleep(static_cast<useconds_t>(a.pause * 1e6));
    Clock::time_point start = Clock::now();
    bench_start(&series);
    int64_t total = 0, retrans = 0;
    if (a.bench)
        bench(s, a);
    else
        total = a.send ? send_file(s, a) : recv_file(s, a);
    double seconds = seconds_since(start);
    if (a.bench && a.send)
        retrans = retransmissions(s);
    usleep(static_cast<useconds_t>(a.hold * 1e6));
    if (a.bench && a.send && !a.abandon) {
        UDT::close(s); // waits until everything has arrived
        series.t1 = bench_now_us();
    }
    printf("{");
    if (a.bench) {
        bench_print(&series, a.send ? "send" : "recv");
        printf(", \"retrans\": [%lld]}\n", static_cast<long long>(retrans));
        fflush(stdout);
    }
    UDT::close(s);
    UDT::cleanup();
    if (!a.bench)
        printf("\"bytes\": %lld, \"seconds\": %.6f, \"cpu_s\": %.6f}\n",
               static_cast<long long>(total), seconds, bench_cpu_s());
    return 0;
}
