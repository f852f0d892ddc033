/* Flows that have little or nothing to send for a while, and then all that there is. */
#include "test_udt_cc_lab.h"

static const char *const laws[] = {"bbr", "udt", "cubic"};

static lab *lab_of(const lab_link *link, const char *cc, bool quiet)
{
    lab *l = malloc(sizeof *l);
    CHECK(l);
    lab_init(l, link);
    lab_add(l, link, link->rtt_us, cc)->quiet = quiet;
    l->bdp = link->rate_bps / 8e6 * 300000;
    lab_go(l);
    return l;
}

/* A conversation: so many bytes in each hundredth of a second, for so long. */
static void talk(lab *l, size_t bytes, double seconds)
{
    double from = lab_now(l);
    for (int i = 1; i <= (int)(seconds * 100); i++) {
        lab_write(l, 0, bytes);
        lab_run(l, from + i * 0.01);
    }
}

/* Then all that there is: share of the limit, and of what the queue has dropped. */
static double pour(lab *l, const lab_link *link, double seconds, double *drops)
{
    lab_mark(l);
    lab_quiet(l, 0, false);
    lab_run(l, lab_now(l) + seconds);
    *drops = lab_drops(l);
    return lab_mbps(l, 0) / lab_limit(link);
}

/* The window of a start grows by what fills it, not by all that was ever acknowledged: after a
 * minute of 20 or 200 KB/s (and of 2 MB/s) a file is sent as by a connection that has just begun.
 */
TEST(udt_cc_a_conversation_opens_no_window)
{
    static const size_t bytes[] = {200, 2000, 20000};
    const lab_link link = {100e6, 0, 50000, 0, false};
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
            lab *l = lab_of(&link, laws[i], true);
            double drops, used;
            talk(l, bytes[k], 60);
            int64_t window = lab_conn(l, 0)->cc.cwnd_pkts;
            used = pour(l, &link, 2, &drops);
            printf("%-5s after a minute of %4zu kB/s: window of %" PRId64
                   " packets; then 2 s %.1f %%, drops %.2f %%\n",
                   laws[i], bytes[k] / 10, window, 100 * used, 100 * drops);
            fflush(stdout);
            DEMAND(window <= 300);
            DEMAND(drops <= (strcmp(laws[i], "bbr") == 0 ? 0.01 : 0.06));
            DEMAND(used >= 0.8);
            lab_fini(l);
            free(l);
        }
}

/* While nothing was sent the way has become longer, or shorter, or a conversation was going on: 80
 * % of what it can carry in the seconds after the first two. */
TEST(udt_cc_a_way_that_changes_in_a_rest)
{
    static const struct {
        int64_t rtt_us[2];
        double rest_s, talk_s;
    } k[] = {
        {{20000, 300000}, 30, 0}, {{20000, 100000}, 12, 0}, {{20000, 300000}, 4, 0},
        {{20000, 300000}, 0, 15}, {{300000, 20000}, 30, 0}, {{20000, 20000}, 30, 0},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        const lab_link was = {200e6, 0, k[i].rtt_us[0], 0, false},
                       is = {200e6, 0, k[i].rtt_us[1], 0, false};
        lab *l = lab_of(&was, "bbr", false);
        double drops, first, then;
        lab_run(l, 5);
        lab_quiet(l, 0, true);
        lab_run(l, 7 + k[i].rest_s);
        lab_change(l, &is);
        talk(l, 500, k[i].talk_s);
        first = pour(l, &is, 2, &drops);
        then = pour(l, &is, 6, &drops);
        printf(
            "bbr %3d ms, %2.0f s of rest and %2.0f s of talk, %3d ms: 2 s %.0f %%, 6 s %.0f %%\n",
            (int)(k[i].rtt_us[0] / 1000), k[i].rest_s, k[i].talk_s, (int)(k[i].rtt_us[1] / 1000),
            100 * first, 100 * then);
        fflush(stdout);
        DEMAND(then >= 0.8);
        lab_fini(l);
        free(l);
    }
}
