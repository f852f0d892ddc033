/* libsrt in file mode as a peer of the benchmarks:
 *   peer_srt recv PORT --seconds S [--buf BYTES]
 *   peer_srt send HOST PORT SECONDS [--buf BYTES]
 * BYTES is what may be under way; flow window and buffers are set to it. */
#include "bench_util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <srt/srt.h>
#include <stdbool.h>
#include <string.h>

enum { CHUNK = 256 * 1024, PAYLOAD = 1456 };

static struct bench_series all;
static char buf[CHUNK];

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "peer_srt: %s: %s\n", what, srt_getlasterror_str());
    exit(1);
}

static void set(SRTSOCKET s, SRT_SOCKOPT which, int value)
{
    if (srt_setsockflag(s, which, &value, sizeof value) == SRT_ERROR)
        die("option");
}

static SRTSOCKET opened(int64_t bytes)
{
    SRTSOCKET s = srt_create_socket();
    int type = SRTT_FILE;
    int pkts = (int)(bytes / PAYLOAD);
    int64_t unlimited = -1;
    struct linger none = {0};
    if (s == SRT_INVALID_SOCK ||
        srt_setsockflag(s, SRTO_TRANSTYPE, &type, sizeof type) == SRT_ERROR)
        die("socket");
    set(s, SRTO_FC, pkts > 256 ? pkts : 256);
    set(s, SRTO_NAKREPORT, 1);
    set(s, SRTO_SNDBUF, (int)bytes);
    set(s, SRTO_RCVBUF, (int)bytes);
    set(s, SRTO_UDP_SNDBUF, 4 << 20);
    set(s, SRTO_UDP_RCVBUF, 8 << 20);
    srt_setsockflag(s, SRTO_MAXBW, &unlimited, sizeof unlimited);
    srt_setsockflag(s, SRTO_LINGER, &none, sizeof none);
    return s;
}

static bool over(double seconds)
{
    return (double)(bench_now_us() - all.t0) >= seconds * 1e6;
}

static void print(SRTSOCKET s, const char *role)
{
    SRT_TRACEBSTATS st;
    memset(&st, 0, sizeof st);
    srt_bstats(s, &st, 0);
    printf("{");
    bench_print(&all, role);
    printf(", \"retrans\": [%d]}\n", st.pktRetransTotal);
    fflush(stdout);
}

static void receiver(int port, double seconds, int64_t bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    SRTSOCKET l = opened(bytes);
    if (srt_bind(l, (struct sockaddr *)&a, sizeof a) == SRT_ERROR || srt_listen(l, 1) == SRT_ERROR)
        die("listen");
    SRTSOCKET s = srt_accept(l, NULL, NULL);
    if (s == SRT_INVALID_SOCK)
        die("accept");
    set(s, SRTO_RCVTIMEO, 200);
    bench_start(&all);
    while (!over(seconds)) {
        int n = srt_recv(s, buf, CHUNK);
        if (n > 0)
            bench_count(&all, n);
        else if (n == 0 || srt_getlasterror(NULL) != SRT_ETIMEOUT)
            break;
    }
    print(s, "recv");
}

static void sender(const char *host, int port, double seconds, int64_t bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    SRTSOCKET s = SRT_INVALID_SOCK;
    inet_pton(AF_INET, host, &a.sin_addr);
    memset(buf, 0x55, sizeof buf);
    for (int tries = 0; tries < 3; tries++) { /* each waits for 3 s */
        s = opened(bytes);
        if (srt_connect(s, (struct sockaddr *)&a, sizeof a) != SRT_ERROR)
            break;
        srt_close(s);
        s = SRT_INVALID_SOCK;
    }
    if (s == SRT_INVALID_SOCK)
        die("connect");
    set(s, SRTO_SNDTIMEO, 200);
    bench_start(&all);
    while (!over(seconds)) {
        int n = srt_send(s, buf, CHUNK);
        if (n > 0)
            bench_count(&all, n);
        else if (srt_getlasterror(NULL) != SRT_ETIMEOUT)
            break;
    }
    print(s, "send");
    srt_close(s);
}

int main(int argc, char **argv)
{
    const char *pos[4] = {0};
    double seconds = 10;
    int64_t bytes = 64 << 20;
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--buf") == 0 && i + 1 < argc)
            bytes = atoll(argv[++i]);
        else if (n < 4)
            pos[n++] = argv[i];
    }
    srt_startup();
    srt_setloglevel(0);
    if (n == 2 && strcmp(pos[0], "recv") == 0) {
        receiver(atoi(pos[1]), seconds, bytes);
    } else if (n == 4 && strcmp(pos[0], "send") == 0) {
        sender(pos[1], atoi(pos[2]), atof(pos[3]), bytes);
    } else {
        fprintf(stderr, "usage: peer_srt recv PORT | send HOST PORT SECONDS [--buf BYTES]\n");
        return 2;
    }
    srt_cleanup();
    return 0;
}
