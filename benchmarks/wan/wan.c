/* A long way between two network namespaces of this machine, in user space: for kernels without
 * netem, and where one wants to know which frames were lost where. See wan --help. */
#include "ends.h"
#include "link.h"

#include <errno.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: wan [OPTIONS]            make both ends, print them as JSON, carry frames until the\n"
    "                                end of standard input or a signal, print the counts as JSON\n"
    "       wan local [--mtu N] [--no-offload]  one namespace with a loopback device, until the\n"
    "                                end of standard input\n"
    "       wan pair                two empty namespaces, to put something else between them\n"
    "       wan single DEVICE       switch off what joins frames of a device (TSO, GSO, GRO)\n"
    "       wan enter NS COMMAND...  run a command at an end (NS as printed)\n"
    "\n"
    "  --link SPEC    both directions        --ab SPEC, --ba SPEC   one of them (first to second)\n"
    "  --flow port=N,rtt=TIME   another delay for a TCP or UDP port; repeatable, one shared queue\n"
    "  --mtu N        largest IP packet (1500)       --seed N       of all chance (1)\n"
    "  --slice US     frames are moved at most this often (50)\n"
    "  --window BYTES bound of TCP's auto-tuned buffers at both ends (max(64 MB, 4 BDP))\n"
    "  --offload      the ends leave segmentation and checksums to the link, as to network cards, "
    "and\n"
    "                 get joined what arrives together; it still carries single frames\n"
    "  --no-fifo      ordinary scheduling instead of SCHED_FIFO\n"
    "\n"
    "SPEC: rate=1g, rtt=100ms or delay=50ms (one way), jitter=2ms, order=keep|free,\n"
    "  loss=0.1%, burst=LOSS:FRAMES or ge=P:R[:LOSS_BAD[:LOSS_GOOD]] (Gilbert-Elliott),\n"
    "  reorder=SHARE[:HELD_BACK], dup=SHARE, corrupt=SHARE, queue=1bdp|100f|250kb (1bdp)\n"
    "The rate counts Ethernet frames: an IP packet of 1500 bytes takes 1538 on the wire.\n";

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

enum {
    LATE_BINS = 20000, /* of a microsecond */
    TAKE_FRAMES = 256, /* at one look */
    GIVE_FRAMES = 64,
    BREATH = 8 /* slices of work without a rest, after which others on this core get one slice: as a
                  real-time task it would starve the receiver, and be stopped for using it all */
};

struct dir {
    wan_spec spec;
    wan_link *link;
    wan_end *from, *to;
    wan_join out;                  /* what leaves next */
    uint32_t origin;               /* of the last piece that was cut */
    int64_t pieces_in, pieces_out; /* reads and writes of more than a frame */
    int64_t drop_device;           /* the receiving end refused the frame */
    uint32_t late[LATE_BINS];
    int64_t late_max_ns, late_sum_ns, late_n;
};

static struct wan {
    struct dir dir[2];
    wan_end end[2];
    size_t mtu;
    int64_t slice_ns, window;
    uint64_t seed;
    bool fifo, offload;
    int64_t wakeups, longest_ns; /* longest time between two looks */
} w = {.mtu = 1500, .slice_ns = 50000, .seed = 1, .fifo = true};

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
    (void)sig;
    stopped = 1;
}

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static _Noreturn void usage(const char *why)
{
    fprintf(stderr, "wan: %s\n%s", why, help);
    exit(2);
}

/* ---- moving frames --------------------------------------------------------------------------- */
/* One frame into the link; the caller wrote it to `room`, or there was none. */
static void offer(struct dir *d, int64_t now, size_t len, const wan_frame *f, bool room)
{
    if (room)
        wan_link_offer(d->link, now, len, f);
    else
        wan_link_no_room(d->link, len);
}

static int take_single(struct dir *d, int64_t now, bool room, size_t len,
                       const struct virtio_net_hdr *h)
{
    wan_frame f = {0};
    if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
        f.sum_from = h->csum_start;
        f.sum_at = (uint16_t)(h->csum_start + h->csum_offset);
    }
    offer(d, now, len, &f, room && len <= w.mtu);
    return 1;
}

static int take_piece(struct dir *d, int64_t now, const uint8_t *p, size_t len, size_t each)
{
    wan_heads heads;
    wan_frame f = {0};
    if (!wan_heads_of(&heads, p, len) || heads.all + each > w.mtu) {
        wan_link_no_room(d->link, len); /* nothing a kernel makes */
        return 1;
    }
    size_t n = wan_cut_count(&heads, len, each);
    f.origin = d->origin = d->origin + 1 ? d->origin + 1 : 1;
    d->pieces_in++;
    for (size_t i = 0; i < n; i++) {
        uint8_t *room = wan_link_room(d->link);
        size_t size = room ? wan_cut(&heads, p, len, each, i, room, &f) : heads.all + each;
        offer(d, now, size, &f, room != NULL);
    }
    return (int)n;
}

/* A frame is read to where the link keeps it; what is longer goes on in `buf`, behind room for its
 * beginning. */
static int take_joined(struct dir *d, int64_t now)
{
    static uint8_t buf[2 * WAN_PIECE];
    struct virtio_net_hdr h;
    int n = 0;
    while (n < TAKE_FRAMES) {
        uint8_t *room = wan_link_room(d->link), *first = room ? room : buf;
        struct iovec v[3] = {{&h, sizeof h}, {first, w.mtu}, {buf + w.mtu, WAN_PIECE}};
        ssize_t got = readv(d->from->tun, v, 3);
        if (got <= (ssize_t)sizeof h)
            break;
        size_t len = (size_t)got - sizeof h;
        if (h.gso_type == VIRTIO_NET_HDR_GSO_NONE) {
            n += take_single(d, now, room != NULL, len, &h);
            continue;
        }
        if (room)
            memcpy(buf, room, len < w.mtu ? len : w.mtu);
        n += take_piece(d, now, buf, len, h.gso_size);
    }
    return n;
}

static int take_in(struct dir *d, int64_t now)
{
    static uint8_t bin[WAN_PIECE];
    int n = 0;
    if (d->from->joined)
        return take_joined(d, now);
    for (; n < TAKE_FRAMES; n++) {
        uint8_t *room = wan_link_room(d->link);
        ssize_t len = read(d->from->tun, room ? room : bin, w.mtu);
        if (len <= 0)
            break;
        offer(d, now, (size_t)len, NULL, room != NULL);
    }
    return n;
}

static void lateness(struct dir *d, int64_t ns)
{
    int64_t us = ns / 1000;
    d->late[us < LATE_BINS ? us : LATE_BINS - 1]++;
    d->late_sum_ns += ns;
    d->late_n++;
    if (ns > d->late_max_ns)
        d->late_max_ns = ns;
}

static uint8_t gso_type(const wan_heads *h)
{
    if (!h->tcp)
        return VIRTIO_NET_HDR_GSO_UDP_L4;
    return h->v6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4;
}

/* What was joined goes to the receiving end. */
static void flush(struct dir *d)
{
    wan_join *j = &d->out;
    struct virtio_net_hdr h = {0};
    struct iovec v[2] = {{&h, sizeof h}, {j->data, j->len}};
    if (j->n == 0)
        return;
    wan_join_finish(j);
    if (j->first.sum_at) {
        h.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        h.csum_start = j->first.sum_from;
        h.csum_offset = (uint16_t)(j->first.sum_at - j->first.sum_from);
    }
    if (j->n > 1) {
        h.gso_type = gso_type(&j->heads);
        h.gso_size = (uint16_t)j->each;
        h.hdr_len = (uint16_t)j->heads.all;
        d->pieces_out++;
    }
    if (writev(d->to->tun, v, 2) != (ssize_t)(sizeof h + j->len))
        d->drop_device += (int64_t)j->n;
    j->n = 0;
}

static int give_out(struct dir *d)
{
    const uint8_t *p;
    wan_frame f;
    size_t len;
    int64_t due, now = now_ns();
    int n = 0;
    for (; n < GIVE_FRAMES && (p = wan_link_take(d->link, now, &len, &due, &f)) != NULL; n++) {
        if (!d->to->joined) {
            if (write(d->to->tun, p, len) != (ssize_t)len)
                d->drop_device++;
        } else if (!wan_join_add(&d->out, p, len, &f)) {
            flush(d);
            wan_join_add(&d->out, p, len, &f);
        }
        lateness(d, now - due);
        if (n % 8 == 7)
            now = now_ns();
    }
    flush(d);
    return n;
}

static void rest(int64_t due, bool busy)
{
    struct pollfd fd[3] = {{.fd = w.end[0].tun, .events = POLLIN},
                           {.fd = w.end[1].tun, .events = POLLIN},
                           {.fd = STDIN_FILENO, .events = POLLIN}};
    int64_t wait = due == INT64_MAX ? 1000000000 : due - now_ns();
    char c;
    if (busy && wait > w.slice_ns)
        wait = w.slice_ns;
    if (wait < w.slice_ns / 4)
        wait = w.slice_ns / 4;
    struct timespec ts = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
    w.wakeups++;
    if (busy) {
        nanosleep(&ts, NULL);
        return;
    }
    ppoll(fd, 3, &ts, NULL);
    if (fd[2].revents && read(STDIN_FILENO, &c, 1) <= 0)
        stopped = 1;
}

static void carry(void)
{
    int64_t last = now_ns(), active = 0, looked = last, rested = last;
    while (!stopped) {
        int n = 0;
        int64_t now = now_ns();
        if (now - last > w.longest_ns && now - active < 1000000)
            w.longest_ns = now - last;
        last = now;
        for (int i = 0; i < 2; i++)
            n += take_in(&w.dir[i], now);
        for (int i = 0; i < 2; i++)
            n += give_out(&w.dir[i]);
        if (n)
            active = now;
        int64_t a = wan_link_due(w.dir[0].link), b = wan_link_due(w.dir[1].link);
        bool busy = now - active < 1000000;
        if (busy && now - looked > 100000000) { /* standard input, now and then */
            looked = now;
            busy = false;
            a = now;
        }
        if (n < GIVE_FRAMES) {
            rest(a < b ? a : b, busy);
            rested = now_ns();
        } else if (now - rested > BREATH * w.slice_ns) {
            rest(now + w.slice_ns, busy);
            rested = now_ns();
        }
    }
}

/* ---- reports --------------------------------------------------------------------------------- */
static void print_dir(const char *name, const struct dir *d)
{
    const wan_spec *s = &d->spec;
    printf("\"%s\": {\"rate_bps\": %lld, \"delay_us\": %.1f, \"jitter_us\": %.1f, \"loss\": %.8g, "
           "\"queue_bytes\": %lld, \"queue_frames\": %lld}",
           name, (long long)s->rate_bps, (double)s->delay_ns * 1e-3, (double)s->jitter_ns * 1e-3,
           s->loss, (long long)s->queue_bytes, (long long)s->queue_frames);
}

static void print_ends(void)
{
    printf("{\"ready\": true, \"pid\": %d, \"mtu\": %zu, \"window_bytes\": %lld, \"ends\": [",
           (int)getpid(), w.mtu, (long long)w.window);
    for (int i = 0; i < 2; i++)
        printf("%s{\"ns\": \"/proc/%d/fd/%d\", \"ipv4\": \"%s\", \"ipv6\": \"%s\"}", i ? ", " : "",
               (int)getpid(), w.end[i].ns, w.end[i].addr4, w.end[i].addr6);
    printf("]");
}

static void print_ready(void)
{
    static const char *const offload[] = {"none", "tcp", "all"};
    print_ends();
    printf(", \"offload\": \"%s\", ", offload[w.end[0].offload]);
    print_dir("ab", &w.dir[0]);
    printf(", ");
    print_dir("ba", &w.dir[1]);
    printf("}\n");
    fflush(stdout);
}

static long late_at(const struct dir *d, double share)
{
    int64_t want = (int64_t)((double)d->late_n * share), seen = 0;
    for (long i = 0; i < LATE_BINS; i++)
        if ((seen += d->late[i]) > want)
            return i;
    return 0;
}

static void print_counts(const char *name, const struct dir *d)
{
    const wan_counts *c = wan_link_counts(d->link);
    int64_t in = c->in_frames - c->drop_queue - c->drop_memory;
    printf(
        "\"%s\": {\"in_frames\": %lld, \"in_bytes\": %lld, \"out_frames\": %lld, \"out_bytes\": "
        "%lld, \"drop_queue\": %lld, \"drop_loss\": %lld, \"drop_burst\": %lld, \"drop_memory\": "
        "%lld, \"drop_device\": %lld, \"drop_before\": %lld, \"reordered\": %lld, "
        "\"duplicated\": %lld, \"corrupted\": %lld, \"pieces_in\": %lld, \"pieces_out\": %lld, ",
        name, (long long)c->in_frames, (long long)c->in_bytes, (long long)c->out_frames,
        (long long)c->out_bytes, (long long)c->drop_queue, (long long)c->drop_loss,
        (long long)c->drop_burst, (long long)c->drop_memory, (long long)d->drop_device,
        (long long)wan_end_overruns(d->from), (long long)c->reordered, (long long)c->duplicated,
        (long long)c->corrupted, (long long)d->pieces_in, (long long)d->pieces_out);
    printf("\"max_queue_frames\": %lld, \"max_queue_bytes\": %lld, \"mean_queue_us\": %.1f, "
           "\"late_us\": {\"mean\": %.1f, \"p50\": %ld, \"p99\": %ld, \"p999\": %ld, \"max\": "
           "%.1f}}",
           (long long)c->max_queue_frames, (long long)c->max_queue_bytes,
           in ? (double)c->queue_ns * 1e-3 / (double)in : 0,
           d->late_n ? (double)d->late_sum_ns * 1e-3 / (double)d->late_n : 0, late_at(d, 0.5),
           late_at(d, 0.99), late_at(d, 0.999), (double)d->late_max_ns * 1e-3);
}

static double cpu_of(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) * 1e-6;
}

static void print_report(double seconds, double cpu_before)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("{");
    print_counts("ab", &w.dir[0]);
    printf(", ");
    print_counts("ba", &w.dir[1]);
    printf(", \"seconds\": %.3f, \"cpu_s\": %.3f, \"wakeups\": %lld, \"longest_gap_us\": %.1f}\n",
           seconds, cpu_of(&u) - cpu_before, (long long)w.wakeups, (double)w.longest_ns * 1e-3);
    fflush(stdout);
}

/* ---- setting up ------------------------------------------------------------------------------ */
static void options(int argc, char **argv)
{
    char err[160];
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        bool ok = true;
        if (strcmp(a, "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        }
        if (strcmp(a, "--no-fifo") == 0) {
            w.fifo = false;
            continue;
        }
        if (strcmp(a, "--offload") == 0) {
            w.offload = true;
            continue;
        }
        if (!v)
            usage(a);
        i++;
        for (int k = 0; k < 2; k++) {
            wan_spec *s = &w.dir[k].spec;
            if (strcmp(a, "--link") == 0 || strcmp(a, k ? "--ba" : "--ab") == 0)
                ok = ok && wan_spec_parse(s, v, err, sizeof err);
            else if (strcmp(a, "--flow") == 0)
                ok = ok && wan_flow_parse(s, v, err, sizeof err);
        }
        if (!ok)
            usage(err);
        if (strcmp(a, "--mtu") == 0)
            w.mtu = strtoul(v, NULL, 10);
        else if (strcmp(a, "--seed") == 0)
            w.seed = strtoull(v, NULL, 10);
        else if (strcmp(a, "--slice") == 0)
            w.slice_ns = strtol(v, NULL, 10) * 1000;
        else if (strcmp(a, "--window") == 0)
            w.window = strtoll(v, NULL, 10);
        else if (!strstr("--link --ab --ba --flow", a))
            usage(a);
    }
    if (w.mtu < 576 || w.mtu > 65535 || w.slice_ns < 1000 || w.slice_ns > 10000000 || w.window < 0)
        usage("576 <= mtu <= 65535, 1 <= slice <= 10000");
}

/* Frames that may be under way at once; each takes memory only while it is used. */
static size_t slots_of(const struct dir *d)
{
    const wan_spec *s = &d->spec;
    int64_t longest = s->delay_ns;
    for (int i = 0; i < s->flows; i++)
        if (s->flow[i].delay_ns > longest)
            longest = s->flow[i].delay_ns;
    longest += s->jitter_ns + (s->reorder > 0 ? s->reorder_ns : 0);
    double bytes = (double)s->rate_bps / 8e9 * (double)longest + (double)s->queue_bytes;
    double n = 4096 + (double)s->queue_frames + bytes / WAN_MIN_WIRE;
    if (s->rate_bps == 0 || n > 1 << 20)
        n = 1 << 20;
    return (size_t)n;
}

static void set_up(void)
{
    int64_t bdp = 0;
    for (int i = 0; i < 2; i++) {
        struct dir *d = &w.dir[i];
        int64_t back = w.dir[!i].spec.delay_ns;
        d->spec.seed = w.seed * 2 + (uint64_t)i;
        d->from = &w.end[i];
        d->to = &w.end[!i];
        wan_spec_finish(&d->spec, back);
        int64_t one = (int64_t)((double)d->spec.rate_bps / 8e9 * (double)(d->spec.delay_ns + back));
        if (one > bdp)
            bdp = one;
        d->link = wan_link_new(&d->spec, w.mtu, slots_of(d));
        if (!d->link)
            wan_die("memory");
    }
    if (w.window == 0)
        w.window = 4 * bdp > 64000000 ? 4 * bdp : 64000000;
    if (w.window > 1 << 30)
        w.window = 1 << 30;
    for (int i = 0; i < 2; i++)
        wan_end_make(&w.end[i], i, w.mtu, w.offload, w.window);
    struct sched_param p = {.sched_priority = 10};
    if (w.fifo && sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &p) < 0)
        perror("wan: SCHED_FIFO"); /* works on, less exactly */
    prctl(PR_SET_TIMERSLACK, 1);
    mlockall(MCL_CURRENT | MCL_ONFAULT);
}

/* Namespaces without the emulator: one for both ends (local), or two with nothing but a loopback
 * device each, between which the caller puts something (pair). */
static void bare(int argc, char **argv, bool pair)
{
    bool offload = true;
    char c;
    w.mtu = 65536;
    w.window = 64000000;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--no-offload") == 0)
            offload = false;
        else if (strcmp(argv[i], "--mtu") == 0 && i + 1 < argc)
            w.mtu = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--window") == 0 && i + 1 < argc)
            w.window = strtoll(argv[++i], NULL, 10);
        else
            usage(argv[i]);
    }
    wan_local_make(&w.end[0], w.mtu, offload, w.window);
    w.end[1] = w.end[0];
    if (pair)
        wan_local_make(&w.end[1], w.mtu, offload, w.window);
    print_ends();
    printf("}\n");
    fflush(stdout);
    while (!stopped && (read(STDIN_FILENO, &c, 1) > 0 || errno == EINTR))
        ;
    printf("{}\n");
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "enter") == 0) {
        if (argc < 4)
            usage("enter NS COMMAND...");
        wan_enter(argv[2], argv + 3);
    }
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (argc >= 2 && (strcmp(argv[1], "local") == 0 || strcmp(argv[1], "pair") == 0)) {
        bare(argc, argv, strcmp(argv[1], "pair") == 0);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "single") == 0) {
        wan_device_single(argv[2]);
        return 0;
    }
    options(argc, argv);
    set_up();
    print_ready();
    struct rusage before;
    getrusage(RUSAGE_SELF, &before);
    int64_t start = now_ns();
    carry();
    print_report((double)(now_ns() - start) * 1e-9, cpu_of(&before));
    return 0;
}
