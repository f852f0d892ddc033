/* The loop: when requests are sent, over which connection, and what is counted. */
#include "load.h"

#include "request.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVE_BYTES = 256 << 10, EVENTS = 256, TICK_MS = 50 };

struct conn {
    int fd;    /* -1 = not connected */
    bool away; /* connected to where a redirection pointed */
    struct sockaddr_in to;
    bool busy;      /* a request is under way */
    bool answering; /* something of the answer has come */
    char head[LOAD_HEAD_MAX];
    size_t head_n, sent; /* bytes of the head; bytes sent of head and body */
    int64_t intended_us; /* when the request was to be sent */
    struct answer answer;
    char token[LOAD_TOKEN_MAX]; /* where its walk through the listing is */
};

struct load {
    const struct load_options *o;
    struct load_counts *counts;
    struct request_maker maker;
    struct conn *conns;
    int epoll, timer;
    char *buffer;
    int64_t begin_us, from_us,
        end_us;      /* start; what is counted: from, and until (0 = until all are done) */
    int64_t last_us; /* when the last counted answer came */
    uint64_t started, finished; /* requests */
    uint64_t due;               /* open loop: how many are to have been started by now */
    uint64_t chance;            /* state of the random keys */
    time_t second;              /* of maker.time */
    int64_t offered_us;         /* when all connections were looked at last */
    int turn;                   /* which of them comes first then, so that all are used alike */
};

static int64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static void tell(struct load *l, const char *what, const char *more, size_t more_n)
{
    char *out = l->counts->first_error;
    if (*out)
        return;
    snprintf(out, sizeof l->counts->first_error, "%s%s%.*s", what, more_n ? ": " : "", (int)more_n,
             more);
    for (; *out; out++)
        if ((unsigned char)*out < ' ')
            *out = ' ';
}

static bool within(const struct load *l, int64_t at)
{
    return at >= l->from_us && (!l->end_us || at < l->end_us);
}

static bool counted(const struct load *l, const struct conn *c, int64_t now)
{
    return within(l, l->o->rate > 0 ? c->intended_us : now);
}

static bool over(const struct load *l, int64_t now)
{
    return (l->end_us && now >= l->end_us) || (l->o->requests && l->started >= l->o->requests);
}

/* ---- connections --------------------------------------------------------------------------------
 */
static void disconnect(struct conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->away = false;
}

static int dial(struct load *l, struct conn *c)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return -1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if ((connect(c->fd, (const struct sockaddr *)&c->to, sizeof c->to) && errno != EINPROGRESS) ||
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event)) {
        disconnect(c);
        return -1;
    }
    l->counts->connects++;
    return 0;
}

/* Send what the socket takes. -1 if the connection is broken. */
static int flush(struct load *l, struct conn *c)
{
    size_t body = l->o->op == LOAD_PUT ? l->o->size : 0, whole = c->head_n + body;
    while (c->sent < whole) {
        struct iovec parts[2];
        size_t n = 0, gone = c->sent < c->head_n ? 0 : c->sent - c->head_n;
        ssize_t took;
        if (c->sent < c->head_n)
            parts[n++] = (struct iovec){c->head + c->sent, c->head_n - c->sent};
        if (body > gone)
            parts[n++] = (struct iovec){l->maker.body + gone, body - gone};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = n};
        took = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (took < 0)
            return errno == EAGAIN || errno == ENOTCONN || errno == EINTR ? 0 : -1;
        c->sent += (size_t)took;
    }
    return 0;
}

/* ---- requests -----------------------------------------------------------------------------------
 */
static uint64_t next_key(struct load *l)
{
    bool read = l->o->op == LOAD_GET || l->o->op == LOAD_HEAD;
    if (!read || l->o->in_turn)
        return l->started % l->o->keys;
    l->chance ^= l->chance << 13;
    l->chance ^= l->chance >> 7;
    l->chance ^= l->chance << 17;
    return (l->chance >> 11) % l->o->keys;
}

static void failed(struct load *l, struct conn *c, const char *what, const char *more, size_t n)
{
    if (counted(l, c, now_us()))
        l->counts->errors++;
    tell(l, what, more, n);
    c->busy = false;
    c->token[0] = 0;
    l->finished++;
    disconnect(c);
}

static void start(struct load *l, struct conn *c, int64_t intended)
{
    time_t second = time(NULL);
    int n;
    if (second != l->second) {
        l->second = second;
        sign_time(second, l->maker.time);
    }
    c->intended_us = intended;
    c->busy = true;
    c->answering = false;
    c->sent = 0;
    n = request_head(&l->maker, next_key(l), c->token, c->head, sizeof c->head);
    l->started++;
    answer_begin(&c->answer, l->o->op == LOAD_HEAD);
    if (n < 0) {
        failed(l, c, "the request is too long", "", 0);
        return;
    }
    c->head_n = (size_t)n;
    if (c->fd < 0)
        c->to = l->o->to;
    if (c->fd < 0 && dial(l, c))
        failed(l, c, "cannot connect", strerror(errno), strlen(strerror(errno)));
    else if (flush(l, c))
        failed(l, c, "cannot send", strerror(errno), strlen(strerror(errno)));
}

/* The next request of a free connection, if one is due. */
static void next(struct load *l, struct conn *c)
{
    int64_t now = now_us();
    if (c->busy)
        return;
    if (l->o->rate > 0) {
        if (l->started < l->due)
            start(l, c, l->begin_us + (int64_t)((double)l->started / l->o->rate * 1e6));
    } else if (!over(l, now)) {
        start(l, c, now);
    }
}

/* Send the request once more, to where the answer points. 0, or -1 if it points nowhere. */
static int follow(struct load *l, struct conn *c)
{
    char host[128];
    int n;
    if (load_resolve(c->answer.location, &c->to, host))
        return -1;
    n = request_again(&l->maker, host, c->answer.location, c->head, sizeof c->head);
    disconnect(c);
    if (n < 0 || dial(l, c))
        return -1;
    c->away = true;
    c->head_n = (size_t)n;
    c->sent = 0;
    c->answering = false;
    answer_begin(&c->answer, l->o->op == LOAD_HEAD);
    l->counts->followed++;
    return flush(l, c);
}

static bool good(struct load *l, const struct answer *a)
{
    uint64_t size = l->o->op == LOAD_HEAD ? a->length : a->body_bytes;
    if (l->o->op == LOAD_BUCKET)
        return a->status < 300 || a->status == 409;
    if (a->status < 200 || a->status > 299)
        return false;
    return (l->o->op != LOAD_GET && l->o->op != LOAD_HEAD) || size == l->o->size;
}

static void tell_refused(struct load *l, const struct answer *a)
{
    char what[64];
    snprintf(what, sizeof what, "answer %d of %llu bytes", a->status,
             (unsigned long long)(l->o->op == LOAD_HEAD ? a->length : a->body_bytes));
    tell(l, what, a->keep, a->status < 300 ? 0 : a->keep_n);
}

static void finish(struct load *l, struct conn *c)
{
    struct answer *a = &c->answer;
    int64_t now = now_us();
    bool whole = c->sent == c->head_n + (l->o->op == LOAD_PUT ? l->o->size : 0), fine = good(l, a);
    uint64_t keys = 0;

    if (l->o->follow && !c->away && a->status == 307 && !follow(l, c))
        return;
    if (l->o->op == LOAD_LIST && fine) {
        a->keep[a->keep_n] = 0;
        keys = request_page(a->keep, a->keep_n, c->token);
    }
    if (counted(l, c, now)) {
        l->counts->status[a->status < LOAD_STATUSES ? a->status : 0]++;
        l->counts->bytes_in += a->body_bytes;
        l->counts->listed += keys;
        if (fine) {
            l->counts->done++;
            l->counts->bytes_out += l->o->op == LOAD_PUT ? l->o->size : 0;
            hist_add(&l->counts->latency, now - c->intended_us);
            l->last_us = now;
        } else {
            l->counts->errors++;
        }
    }
    if (!fine)
        tell_refused(l, a);
    l->finished++;
    c->busy = false;
    if (a->close || !whole || c->away)
        disconnect(c);
}

/* Take what has come; a free connection goes on with its next request. `ended`: the other side
 * sends no more, so no further event tells of the end behind the last bytes. */
static void receive(struct load *l, struct conn *c, bool ended)
{
    for (;;) {
        ssize_t n = recv(c->fd, l->buffer, RECEIVE_BYTES, 0);
        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
            return;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            const char *why = n < 0 ? strerror(errno) : "";
            if (c->busy)
                failed(l, c, "the connection was cut", why, strlen(why));
            else
                disconnect(c);
            next(l, c);
            return;
        }
        c->answering = true;
        uint64_t before = c->answer.body_bytes;
        ssize_t took = c->busy ? answer_take(&c->answer, l->buffer, (size_t)n) : -1;
        if (c->busy && c->answer.status < 300 && within(l, now_us()))
            l->counts->taken += c->answer.body_bytes - before;
        if (took < n) {
            if (c->busy)
                failed(l, c, took < 0 ? "no HTTP" : "more than was asked for", l->buffer,
                       n < 64 ? (size_t)n : 64);
            else
                disconnect(c);
            next(l, c);
            return;
        }
        if (c->answer.state == ANSWER_DONE) {
            finish(l, c);
            if (ended && !c->busy)
                disconnect(c);
            next(l, c);
            return; /* whatever comes on a new connection raises an event of its own */
        }
        if (n < RECEIVE_BYTES && !ended)
            return;
    }
}

static void event(struct load *l, struct conn *c, uint32_t events)
{
    bool ended = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    if (c->fd < 0)
        return;
    if (events & (EPOLLERR | EPOLLHUP) && c->busy && !c->answering && !(events & EPOLLIN)) {
        int error = 0;
        socklen_t n = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
        failed(l, c, "cannot connect", strerror(error), strlen(strerror(error)));
        return; /* the next try with the next tick */
    }
    /* whoever refuses an upload may have answered before he closed */
    if (events & EPOLLOUT && c->busy && flush(l, c) && !(events & EPOLLIN && errno == EPIPE)) {
        failed(l, c, "cannot send", strerror(errno), strlen(strerror(errno)));
        return;
    }
    if (events & EPOLLIN)
        receive(l, c, ended);
}

/* ---- time ---------------------------------------------------------------------------------------
 */
/* Open loop: how many requests are due now; sets the timer to the next one. */
static void schedule(struct load *l, int64_t now)
{
    int64_t until = l->end_us && now > l->end_us ? l->end_us : now, at;
    struct itimerspec when = {0};
    l->due = (uint64_t)((double)(until - l->begin_us) * 1e-6 * l->o->rate) + 1;
    if (l->o->requests && l->due > l->o->requests)
        l->due = l->o->requests;
    if (until < now || (l->o->requests && l->due == l->o->requests))
        return;
    at = l->begin_us + (int64_t)((double)l->due / l->o->rate * 1e6) + 1;
    when.it_value.tv_sec = at / 1000000;
    when.it_value.tv_nsec = at % 1000000 * 1000;
    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void offer(struct load *l)
{
    int n = l->o->connections;
    l->offered_us = now_us();
    if (l->o->rate > 0)
        schedule(l, l->offered_us);
    l->turn = (l->turn + 1) % n;
    for (int i = 0; i < n && (l->o->rate <= 0 || l->started < l->due); i++)
        next(l, &l->conns[(l->turn + i) % n]);
}

static bool under_way(const struct load *l)
{
    int64_t now = now_us();
    if (l->end_us && now > l->end_us + (int64_t)(l->o->grace_s * 1e6))
        return false;
    if (l->o->rate > 0 && l->started < l->due)
        return true;
    return !over(l, now) || l->started != l->finished;
}

static void loop(struct load *l)
{
    struct epoll_event events[EVENTS];
    offer(l);
    while (under_way(l)) {
        int n = epoll_wait(l->epoll, events, EVENTS, TICK_MS);
        bool ticked = now_us() - l->offered_us > TICK_MS * 1000;
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                event(l, events[i].data.ptr, events[i].events);
            else
                ticked = true;
        }
        if (ticked) {
            uint64_t expired;
            if (l->o->rate > 0 && read(l->timer, &expired, sizeof expired) < 0 && errno != EAGAIN)
                return;
            offer(l);
        }
    }
}

/* ---- a run --------------------------------------------------------------------------------------
 */
static int make_conns(struct load *l)
{
    size_t kept = l->o->op == LOAD_LIST ? LOAD_PAGE_MAX : 300;
    l->conns = calloc((size_t)l->o->connections, sizeof *l->conns);
    l->buffer = malloc(RECEIVE_BYTES);
    if (!l->conns || !l->buffer)
        return -1;
    for (int i = 0; i < l->o->connections; i++) {
        l->conns[i].fd = -1;
        l->conns[i].answer.keep_cap = kept;
        l->conns[i].answer.keep = malloc(kept + 1);
        if (!l->conns[i].answer.keep)
            return -1;
    }
    return 0;
}

static int open_loop(struct load *l)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (l->epoll < 0 || l->timer < 0)
        return -1;
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &event);
}

static void release(struct load *l)
{
    for (int i = 0; l->conns && i < l->o->connections; i++) {
        disconnect(&l->conns[i]);
        free(l->conns[i].answer.keep);
    }
    free(l->conns);
    free(l->buffer);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->timer >= 0)
        close(l->timer);
    request_end(&l->maker);
}

/* How far a request under way has come, for people. */
static void describe(const struct load *l, const struct conn *c, char *out, size_t cap)
{
    size_t whole = c->head_n + (l->o->op == LOAD_PUT ? l->o->size : 0);
    double late_s = (double)(now_us() - c->intended_us) * 1e-6;
    const char *away = c->away ? ", redirected" : "";
    if (!c->sent)
        snprintf(out, cap, "%.1f s for a connection%s", late_s, away);
    else if (c->sent < whole)
        snprintf(out, cap, "%.1f s, %zu of %zu bytes sent%s", late_s, c->sent, whole, away);
    else if (!c->answering)
        snprintf(out, cap, "%.1f s, sent whole%s", late_s, away);
    else
        snprintf(out, cap, "%.1f s, %llu bytes of an answer with status %d%s", late_s,
                 (unsigned long long)c->answer.body_bytes, c->answer.status, away);
}

/* What stayed unanswered, and at which step the one that has waited longest is. */
static void tell_unanswered(struct load *l, const char *what)
{
    const struct conn *oldest = NULL;
    char how[128] = "", text[256];
    int n;
    for (int i = 0; i < l->o->connections; i++) {
        const struct conn *c = &l->conns[i];
        if (c->busy && (!oldest || c->intended_us < oldest->intended_us))
            oldest = c;
    }
    if (oldest)
        describe(l, oldest, how, sizeof how);
    n = snprintf(text, sizeof text, "%llu of %llu requests still under way%s%s",
                 (unsigned long long)(l->started - l->finished), (unsigned long long)l->started,
                 oldest ? ", the oldest for " : "", how);
    tell(l, what, text, (size_t)n);
}

int load_run(const struct load_options *options, struct sign_key *key, struct load_counts *counts)
{
    struct load l = {
        .o = options, .counts = counts, .epoll = -1, .timer = -1, .chance = 88172645463325252u};
    bool fine;
    memset(counts, 0, sizeof *counts);
    if (request_begin(&l.maker, options, key) || make_conns(&l) || open_loop(&l)) {
        tell(&l, "cannot begin", strerror(errno), strlen(strerror(errno)));
        release(&l);
        return -1;
    }
    l.begin_us = now_us();
    l.from_us = l.begin_us + (int64_t)(options->warm_s * 1e6);
    if (options->seconds > 0)
        l.end_us = l.from_us + (int64_t)(options->seconds * 1e6);
    loop(&l);
    counts->unanswered = l.started - l.finished;
    counts->unsent = options->rate > 0 ? l.due - l.started : 0;
    counts->counted_us =
        options->rate > 0 || !l.end_us ? l.last_us - l.from_us : l.end_us - l.from_us;
    fine = counts->done || (counts->taken && options->seconds > 0 && options->rate <= 0);
    if (!fine)
        tell_unanswered(&l, "nothing was answered in the time that was counted");
    else if (counts->unanswered)
        tell_unanswered(&l, "not answered in the end");
    release(&l);
    return fine ? 0 : -1;
}
