/* Private: the model of a path that cc_bbr.c acts upon. */
#ifndef UDT_CC_BBR_H
#define UDT_CC_BBR_H

#include "udt/cc.h"

#define LOSS_LEAST 8 /* packets, to judge by */

enum { STARTUP, DRAIN, DOWN, CRUISE, REFILL, UP, PROBE_RTT };

/* Packets to send for each that is to arrive. Not in a proof. */
double udt__bbr_make_up(const udt_cc_bbr *b);
double udt__bbr_bw_now(const udt_cc_bbr *b);
/* Packets in flight at the path's rate and smallest round trip. */
double udt__bbr_bdp(const udt_cc_bbr *b, double bw);
void udt__bbr_note_rtt(udt_cc *cc, const udt_cc_ack *a);
void udt__bbr_note_bw(udt_cc_bbr *b, const udt_cc_ack *a);
/* Acknowledgements in lumps: how many more came at once than the rate explains. */
void udt__bbr_note_lumps(udt_cc_bbr *b, const udt_cc_ack *a);
bool udt__bbr_queue_stands(const udt_cc_bbr *b);
/* And is longer than the way, and than any time for which threads stand still. */
bool udt__bbr_queue_deep(const udt_cc_bbr *b);
/* From here on is counted what arrives and what is sent. */
void udt__bbr_mark(udt_cc_bbr *b, udt_time now);
double udt__bbr_delivered_pps(const udt_cc_bbr *b, udt_time now);
double udt__bbr_sent_pps(const udt_cc_bbr *b, udt_time now);
/* What was delivered since the mark is what a push has brought: our share follows. */
void udt__bbr_learn_share(udt_cc_bbr *b, udt_time now);
/* More was lost in this round than chance explains, three deviations of it included. */
bool udt__bbr_lost_much(const udt_cc_bbr *b);
/* Loss that stays in the slow phases is chance: the smallest of a cycle. */
void udt__bbr_learn_chance(udt_cc_bbr *b);
/* What was sent slowly, in small bursts, has come or is lost: chance takes its share whatever the
 * rate, a policer or a short queue does not. */
void udt__bbr_prove_chance(udt_cc *cc, udt_time now);
/* Paths change: what was proved is forgotten little by little, and small bursts that have helped
 * for a while are left out for a cycle, to see. */
void udt__bbr_new_cycle(udt_cc_bbr *b, udt_time now);
/* Packets to send at once, 0 = any number. */
int udt__bbr_burst(const udt_cc_bbr *b);
/* A proof takes a whole round. */
bool udt__bbr_proving(const udt_cc_bbr *b);
/* A standing queue, and more lost than chance explains: somebody has overflowed it. */
bool udt__bbr_overflow(const udt_cc_bbr *b);
/* The path carries much less than we believe. */
bool udt__bbr_collapsed(const udt_cc_bbr *b);
/* Chance takes its share from the first round on. */
void udt__bbr_startup_chance(udt_cc_bbr *b);

#endif
