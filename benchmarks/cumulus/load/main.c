/* s3load: requests of one kind at an S3 server, and how fast they are answered. */
#include "load.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const char USAGE[] =
    "usage: s3load get|put|head|list|delete|bucket --url http://HOST:PORT --bucket NAME [OPTIONS]\n"
    "Requests of one kind over kept connections; the access key from AWS_ACCESS_KEY_ID and\n"
    "AWS_SECRET_ACCESS_KEY. Prints one JSON object. `bucket` makes the bucket and ends.\n"
    "  --connections N   how many connections, one request at a time on each (16)\n"
    "  --seconds S       how long is counted (10)\n"
    "  --warm S          how long before that without being counted (0)\n"
    "  --requests N      instead of --seconds: end after so many\n"
    "  --rate R          open loop: R requests a second, each timed from when it was due\n"
    "  --grace S         how long the last answers are waited for (10)\n"
    "  --keys N          keys PREFIX00000000 to N - 1; GET and HEAD choose by chance (1000)\n"
    "  --prefix P        what keys begin with (k)\n"
    "  --follow          go where a redirection (307) points\n"
    "  --in-turn         GET and HEAD take the keys one after the other\n"
    "  --size BYTES      of an object; GET and HEAD check it (4096)\n"
    "  --page N          keys of a page of LIST (1000)\n"
    "  --region R        (us-east-1)\n"
    "  --unsigned-body   UNSIGNED-PAYLOAD instead of the body's SHA-256\n"
    "  --print-head TIME print the first request's head as at TIME (20260131T120000Z) and end\n"
    "  --token T         with --print-head list: the page after this token\n";

struct run {
    struct load_options load;
    const char *url, *region, *print_head, *token;
};

static const char *const OPS[] = {"get", "put", "head", "list", "delete", "bucket"};

static _Noreturn void die(const char *what, const char *value)
{
    fprintf(stderr, "s3load: %s%s%s\n", what, *value ? ": " : "", value);
    exit(2);
}

static double number(const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        die("no such number", text);
    return value;
}

static void copy(char *to, size_t cap, const char *from)
{
    if (strlen(from) >= cap)
        die("too long", from);
    strcpy(to, from);
}

enum choice {
    URL = 256,
    BUCKET,
    CONNECTIONS,
    SECONDS,
    WARM,
    REQUESTS,
    RATE,
    GRACE,
    KEYS,
    PREFIX,
    IN_TURN,
    FOLLOW,
    SIZE,
    PAGE,
    REGION,
    UNSIGNED,
    PRINT_HEAD,
    TOKEN
};

static const struct option LONG[] = {{"url", 1, 0, URL},
                                     {"bucket", 1, 0, BUCKET},
                                     {"connections", 1, 0, CONNECTIONS},
                                     {"seconds", 1, 0, SECONDS},
                                     {"warm", 1, 0, WARM},
                                     {"requests", 1, 0, REQUESTS},
                                     {"rate", 1, 0, RATE},
                                     {"grace", 1, 0, GRACE},
                                     {"keys", 1, 0, KEYS},
                                     {"prefix", 1, 0, PREFIX},
                                     {"in-turn", 0, 0, IN_TURN},
                                     {"follow", 0, 0, FOLLOW},
                                     {"size", 1, 0, SIZE},
                                     {"page", 1, 0, PAGE},
                                     {"region", 1, 0, REGION},
                                     {"unsigned-body", 0, 0, UNSIGNED},
                                     {"print-head", 1, 0, PRINT_HEAD},
                                     {"token", 1, 0, TOKEN},
                                     {0}};

static void choose(struct run *run, int which, const char *value)
{
    struct load_options *o = &run->load;
    switch (which) {
    case URL:
        run->url = value;
        break;
    case BUCKET:
        copy(o->bucket, sizeof o->bucket, value);
        break;
    case CONNECTIONS:
        o->connections = (int)number(value, 1, 20000);
        break;
    case SECONDS:
        o->seconds = number(value, 0.01, 1e6);
        break;
    case WARM:
        o->warm_s = number(value, 0, 1e6);
        break;
    case REQUESTS:
        o->requests = (uint64_t)number(value, 1, 1e12);
        break;
    case RATE:
        o->rate = number(value, 0.01, 1e7);
        break;
    case GRACE:
        o->grace_s = number(value, 0, 1e6);
        break;
    case KEYS:
        o->keys = (uint64_t)number(value, 1, 1e8);
        break;
    case PREFIX:
        copy(o->prefix, sizeof o->prefix, value);
        break;
    case FOLLOW:
        o->follow = true;
        break;
    case IN_TURN:
        o->in_turn = true;
        break;
    case SIZE:
        o->size = (size_t)number(value, 0, 1 << 30);
        break;
    case PAGE:
        o->page = (int)number(value, 1, 1000);
        break;
    case REGION:
        run->region = value;
        break;
    case UNSIGNED:
        o->unsigned_body = true;
        break;
    case PRINT_HEAD:
        run->print_head = value;
        break;
    case TOKEN:
        run->token = value;
        break;
    default:
        fputs(USAGE, stderr);
        exit(2);
    }
}

static void parse(struct run *run, int argc, char **argv)
{
    int which, op;
    for (op = LOAD_BUCKET; argc > 1 && op >= 0 && strcmp(argv[1], OPS[op]);)
        op--;
    if (argc < 2 || op < 0) {
        fputs(USAGE, stderr);
        exit(2);
    }
    run->load.op = (enum load_op)op;
    while ((which = getopt_long(argc - 1, argv + 1, "", LONG, NULL)) != -1)
        choose(run, which, optarg ? optarg : "");
    if (!run->url || !*run->load.bucket)
        die("--url and --bucket are missing", "");
    if (run->load.op == LOAD_BUCKET)
        run->load.requests = 1, run->load.connections = 1;
    if (run->load.requests)
        run->load.seconds = 0;
    if (load_resolve(run->url, &run->load.to, run->load.host))
        die("not http://HOST:PORT of a host that there is", run->url);
}

/* Text as a JSON string; bytes beyond ASCII as they are. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void print_counts(const struct run *run, const struct load_counts *c)
{
    const struct load_options *o = &run->load;
    double s = (double)c->counted_us * 1e-6, per_s = s > 0 ? 1 / s : 0;
    const struct hist *h = &c->latency;
    struct rusage use;
    const char *comma = "";

    getrusage(RUSAGE_SELF, &use);
    printf("{\"op\": \"%s\", \"connections\": %d, \"size\": %zu, \"keys\": %llu", OPS[o->op],
           o->connections, o->size, (unsigned long long)o->keys);
    printf(", \"offered_per_s\": %.6g, \"seconds\": %.6g, \"done\": %llu, \"errors\": %llu",
           o->rate, s, (unsigned long long)c->done, (unsigned long long)c->errors);
    printf(", \"unsent\": %llu, \"connects\": %llu, \"rate_per_s\": %.6g, \"keys_per_s\": %.6g",
           (unsigned long long)c->unsent, (unsigned long long)c->connects, (double)c->done * per_s,
           (double)c->listed * per_s);
    printf(", \"unanswered\": %llu", (unsigned long long)c->unanswered);
    printf(", \"followed\": %llu, \"taken_per_s\": %.6g", (unsigned long long)c->followed,
           (double)c->taken * per_s);
    printf(", \"bytes_in\": %llu, \"bytes_out\": %llu", (unsigned long long)c->bytes_in,
           (unsigned long long)c->bytes_out);
    printf(", \"p50_ms\": %.6g, \"p90_ms\": %.6g, \"p99_ms\": %.6g, \"p999_ms\": %.6g",
           hist_ms(h, .5), hist_ms(h, .9), hist_ms(h, .99), hist_ms(h, .999));
    printf(", \"max_ms\": %.6g, \"mean_ms\": %.6g", (double)h->max_us / 1e3,
           h->n ? h->sum_us / (double)h->n / 1e3 : 0);
    printf(", \"cpu_s\": %.4f, \"statuses\": {",
           (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
               (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6);
    for (int i = 0; i < LOAD_STATUSES; i++) {
        if (c->status[i]) {
            printf("%s\"%d\": %llu", comma, i, (unsigned long long)c->status[i]);
            comma = ", ";
        }
    }
    printf("}, \"first_error\": ");
    print_text(c->first_error);
    printf("}\n");
}

int main(int argc, char **argv)
{
    static struct load_counts counts;
    struct run run = {.load = {.connections = 16,
                               .seconds = 10,
                               .keys = 1000,
                               .prefix = "k",
                               .size = 4096,
                               .page = 1000,
                               .grace_s = 10},
                      .region = "us-east-1",
                      .token = ""};
    const char *access = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    struct sign_key key;

    signal(SIGPIPE, SIG_IGN);
    parse(&run, argc, argv);
    if (!access || !secret)
        die("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set", "");
    if (sign_init(&key, access, secret, run.region))
        die("the access key or the region is too long", "");
    if (run.print_head) {
        char head[LOAD_HEAD_MAX];
        int n = load_first_head(&run.load, &key, run.print_head, run.token, head, sizeof head);
        if (n < 0)
            die("the request is too long", "");
        fwrite(head, 1, (size_t)n, stdout);
        return 0;
    }
    if (load_run(&run.load, &key, &counts)) {
        fprintf(stderr, "s3load: %s\n", counts.first_error);
        return 1;
    }
    print_counts(&run, &counts);
    return 0;
}
