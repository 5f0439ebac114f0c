/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All interleavings of two engines, their daemons, a coordinator that comes and goes and a store
 * with one block key, over the real lineage.c: the model of DESIGN.md section 4 (model/lineage.py
 * in the design's shared folder) with the code in the place of its protocol pieces. Breadth first,
 * so that a violation comes with a shortest trace. Every budgeted event of a lens may come at any
 * time; what the daemon does by itself, and what is on its way, may take any time.
 *
 * Ghosts: each block's content carries the weights it was computed with, a mark per instance that
 * must never receive it again (a reset that answered success cleared it), and one while that reset
 * runs. A violation: a lookup promises, or a get delivers, content of other weights than the
 * instance holds, or cleared content; an open instance is in the lineage of a name that is not its
 * weights'; or something never comes to rest (liveness).
 *
 * Usage: lineage_explorer [lens ...]; exit 1 and the trace if there is a violation.
 */
#include "connector/lineage.h"

#include "base/assert.h"

#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIX   3      /* weights half loaded */
#define DEAD  0xfffe /* a token that can never be current again */
#define Q_MAX 3

static const uint8_t P[2] = {16, 32};
static const uint8_t PRE[2] = {64, 128};

#define BUDGETS(X)                                                                                 \
    X(req)                                                                                         \
    X(upd)                                                                                         \
    X(slp)                                                                                         \
    X(rst)                                                                                         \
    X(pau)                                                                                         \
    X(ten)                                                                                         \
    X(real) X(ce) X(cd) X(part) X(give) X(lease) X(tmo) X(early) X(relink) X(opt) X(cut) X(step2)
enum budget {
#define X(name) B_##name,
    BUDGETS(X)
#undef X
        B_COUNT
};

enum names { VER, FP, CONST_NAME };
struct lens {
    const char *name;
    enum names names;
    uint8_t budget[B_COUNT];
    uint8_t maxw;
    bool tracks, keep, private_, live;
    uint8_t who[B_COUNT]; /* bits; 0: both */
};

enum msg_kind { M_LINEAGE, M_RESET, M_FINGERPRINT };
struct msg {
    uint8_t kind;
    bool left, preempt, own; /* own: of the operation */
    uint32_t ask;
    uint64_t lineage, token;
    uint8_t name;
    uint8_t nretired;
    uint64_t retired[3];
};
enum op { OP_NONE, OP_SLEEP, OP_UPDATE, OP_PAUSE, OP_RESET, OP_RESET2, OP_RETIRE, OP_TENANT };

struct told {
    uint64_t lineage;
    uint8_t retirement;
    bool tenant;
};

struct inst {
    /* engine */
    uint8_t ew, upd, slp;
    bool paused;
    bool has_loc, has_req;
    uint8_t loc_mask, req_mask, req_phase;
    uint64_t loc_token, req_token;
    uint64_t el, es;
    uint8_t en;
    bool rst, wch;
    uint8_t nep;
    uint64_t ep[3];
    uint8_t nq;
    struct msg q[Q_MAX];
    /* daemon */
    bool up;
    bool opted;
    uint8_t op;
    uint8_t op_target;
    uint8_t nlins;
    uint64_t lins[2];
    bool op_waits_retire; /* of RETIRE: the coordinator has it */
    uint8_t retirement;
    struct kvp_lineage l;
    /* on their way to it */
    bool has_join, join_failed;
    uint32_t join_ask;
    uint64_t join_lineage;
    bool has_check, check_bound;
    uint32_t check_ask;
    bool has_fp;
    uint32_t fp_ask;
    uint8_t fp_value;
    bool has_ret; /* a retirement asked for */
    uint32_t ret_ask;
    uint8_t ret_id;
    uint8_t ntold;
    struct told told[4];
};

#define NAMES_MAX 6
struct state {
    struct inst in[2];
    bool reach[2];
    bool leased[2]; /* by its own clock its lease has not ended */
    bool gone[2];   /* the coordinator has dropped it with its lease */
    uint8_t nnames;
    struct {
        uint8_t name, members;
        uint64_t lineage;
    } names[NAMES_MAX];
    uint8_t nobjs, nputs;
    struct {
        uint64_t lineage;
        uint8_t mask;
    } objs[8], puts[2];
    uint8_t waiting[8]; /* retirement -> members that have not left; bits 2, 3: earlier lives */
    uint8_t nretirements;
    uint8_t budget[B_COUNT];
};

static const struct lens *lens;
static const char *violation;
static char violation_text[256];

static void violate(const char *what, int i, uint8_t mask, uint8_t ew)
{
    if (violation == NULL) {
        snprintf(violation_text, sizeof violation_text, "%s: %c, content %02x, holds W%u", what,
                 'A' + i, mask, ew);
        violation = violation_text;
    }
}

/* ---- names as small numbers: 0 none, 10+w version, 20 constant, 30+w fingerprint ---- */

static uint8_t code_of(const char *name)
{
    if (name[0] == '\0') {
        return 0;
    }
    if (strcmp(name, "const") == 0) {
        return 20;
    }
    if (strncmp(name, "fingerprint:f", 13) == 0) {
        return (uint8_t)(30 + name[13] - '0');
    }
    kvb_assert(name[0] == 'v' && name[2] == '\0');
    return (uint8_t)(10 + name[1] - '0');
}

static const char *text_of(uint8_t code)
{
    static char texts[4][KVB_WEIGHTS_NAME_MAX];
    static unsigned turn;
    char *text = texts[turn++ % 4];
    memset(text, 0, KVB_WEIGHTS_NAME_MAX);
    if (code == 20) {
        strcpy(text, "const");
    } else if (code >= 30) {
        snprintf(text, KVB_WEIGHTS_NAME_MAX, "fingerprint:f%u", code - 30u);
    } else if (code >= 10) {
        snprintf(text, KVB_WEIGHTS_NAME_MAX, "v%u", code - 10u);
    }
    return text;
}

/* ---- randomness: the smallest number that is not in use ---- */

static struct state *drawing;

static void note(uint64_t *max, uint64_t id)
{
    if (id != DEAD && id > *max) {
        *max = id;
    }
}

static uint64_t fresh_in(const struct state *s)
{
    uint64_t max = 0;
    for (int i = 0; i < 2; i++) {
        const struct inst *x = &s->in[i];
        note(&max, x->l.lineage.id.lo);
        note(&max, x->l.token.id.lo);
        note(&max, x->l.last_lineage.id.lo);
        for (uint32_t r = 0; r < x->l.nretired; r++) {
            note(&max, x->l.retired[r].id.lo);
        }
        note(&max, x->el);
        note(&max, x->es);
        note(&max, x->loc_token);
        note(&max, x->req_token);
        note(&max, x->join_lineage);
        for (int q = 0; q < x->nq; q++) {
            note(&max, x->q[q].lineage);
            note(&max, x->q[q].token);
        }
        for (int t = 0; t < x->ntold; t++) {
            note(&max, x->told[t].lineage);
        }
        for (int t = 0; t < x->nlins; t++) {
            note(&max, x->lins[t]);
        }
        for (int t = 0; t < x->nep; t++) {
            note(&max, x->ep[t]);
        }
    }
    for (int n = 0; n < s->nnames; n++) {
        note(&max, s->names[n].lineage);
    }
    for (int n = 0; n < s->nobjs; n++) {
        note(&max, s->objs[n].lineage);
    }
    for (int n = 0; n < s->nputs; n++) {
        note(&max, s->puts[n].lineage);
    }
    return max + 1;
}

static uint64_t last_drawn;
static void fill(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    kvb_assert(len == sizeof(struct kvb_id));
    uint64_t id = fresh_in(drawing);
    if (id <= last_drawn) {
        id = last_drawn + 1; /* drawn just before and not stored yet */
    }
    last_drawn = id;
    struct kvb_id drawn = {.hi = 0, .lo = id};
    memcpy(buf, &drawn, sizeof drawn);
}
static const struct kvb_random draw = {.fill = fill};

/* ---- coordinator ---- */

static int find_name(const struct state *s, uint8_t name)
{
    for (int n = 0; n < s->nnames; n++) {
        if (s->names[n].name == name) {
            return n;
        }
    }
    return -1;
}

static void unbind(struct state *s, int n)
{
    s->names[n] = s->names[--s->nnames];
    memset(&s->names[s->nnames], 0, sizeof s->names[0]);
}

static void tell(struct state *s, int j, uint64_t lineage, uint8_t retirement, bool tenant)
{
    struct inst *y = &s->in[j];
    kvb_assert(y->ntold < 4);
    y->told[y->ntold++] =
        (struct told){.lineage = lineage, .retirement = retirement, .tenant = tenant};
    s->waiting[retirement] |= (uint8_t)(!s->gone[j] << j);
}

/* What the coordinator has of a member (or of an earlier life of it) ends with its lease. */
static void end_lease(struct state *s, int bit)
{
    for (int n = 0; n < s->nnames; n++) {
        s->names[n].members &= (uint8_t) ~(1 << bit);
    }
    for (int r = 0; r < 8; r++) {
        s->waiting[r] &= (uint8_t) ~(1 << bit);
    }
}

static bool counts(const struct state *s, int bit)
{
    bool any = false;
    for (int n = 0; n < s->nnames; n++) {
        any = any || (s->names[n].members >> bit & 1) != 0;
    }
    for (int r = 0; r < 8; r++) {
        any = any || (s->waiting[r] >> bit & 1) != 0;
    }
    return any;
}

/* The daemon is gone; the coordinator does not know it yet. */
static void make_earlier(struct state *s, int i)
{
    for (int n = 0; n < s->nnames; n++) {
        uint8_t bit = s->names[n].members >> i & 1;
        s->names[n].members = (uint8_t)((s->names[n].members & ~(1 << i)) | bit << (i + 2));
    }
    for (int r = 0; r < 8; r++) {
        uint8_t bit = s->waiting[r] >> i & 1;
        s->waiting[r] = (uint8_t)((s->waiting[r] & ~(1 << i)) | bit << (i + 2));
    }
    s->leased[i] = s->gone[i] = false;
}

static uint8_t new_retirement(struct state *s)
{
    kvb_assert(s->nretirements < 8);
    return s->nretirements++;
}

static void unbind_lineage(struct state *s, uint64_t lineage, int asker, uint8_t retirement)
{
    for (int n = s->nnames - 1; n >= 0; n--) {
        if (s->names[n].lineage != lineage) {
            continue;
        }
        for (int j = 0; j < 2; j++) {
            if ((s->names[n].members >> j & 1) != 0 && j != asker) {
                tell(s, j, lineage, retirement, false);
            }
            /* nobody answers */
            s->waiting[retirement] =
                (uint8_t)(s->waiting[retirement] | (s->names[n].members & (4 << j)));
        }
        unbind(s, n);
    }
}

/* ---- actions of the rules ---- */

static void push(struct inst *x, struct msg msg)
{
    kvb_assert(x->nq < Q_MAX);
    x->q[x->nq++] = msg;
}

static void run_action(struct state *s, int i, const struct kvp_lineage_action *action)
{
    struct inst *x = &s->in[i];
    switch (action->what) {
    case KVP_DO_SEND: {
        if (!x->l.attached) {
            return;
        }
        struct kvb_link_lineage link;
        kvp_lineage_message(&x->l, &link);
        struct msg msg = {.kind = M_LINEAGE,
                          .ask = action->ask,
                          .left = link.left,
                          .lineage = link.lineage.id.lo,
                          .token = link.token.id.lo,
                          .name = code_of(link.name),
                          .nretired = (uint8_t)link.nretired};
        kvb_assert(link.nretired <= 3);
        for (uint32_t r = 0; r < link.nretired; r++) {
            msg.retired[r] = link.retired[r].id.lo;
        }
        /* One not taken up yet is overtaken: the engine would only pass through it. */
        if (x->nq > 0 && x->q[x->nq - 1].kind == M_LINEAGE) {
            msg.left = msg.left || x->q[x->nq - 1].left;
            x->q[x->nq - 1] = msg;
        } else {
            push(x, msg);
        }
        return;
    }
    case KVP_DO_STAY:
        if (x->has_req && x->req_phase == 1) { /* running gets are failed */
            x->req_mask = 0;
            x->req_phase = 0;
        }
        return;
    case KVP_DO_LOCAL_RESET:
        push(x, (struct msg){.kind = M_RESET, .ask = action->ask});
        return;
    case KVP_DO_FINGERPRINT:
        push(x, (struct msg){.kind = M_FINGERPRINT, .ask = action->ask});
        return;
    case KVP_DO_RESOLVE: {
        kvb_assert(s->reach[i]);
        uint8_t name = code_of(x->l.name);
        int n = find_name(s, name);
        if (n < 0) {
            kvb_assert(s->nnames < NAMES_MAX);
            n = s->nnames++;
            uint64_t id = fresh_in(s);
            id = id <= last_drawn ? last_drawn + 1 : id;
            last_drawn = id;
            s->names[n].name = name;
            s->names[n].lineage = id;
            s->names[n].members = 0;
        }
        s->names[n].members |= (uint8_t)(1 << i);
        x->has_join = true;
        x->join_ask = action->ask;
        x->join_lineage = s->names[n].lineage;
        return;
    }
    case KVP_DO_STEP:
        kvb_assert(false);
        return;
    case KVP_DO_CHECK: {
        int n = find_name(s, code_of(x->l.joined_name));
        bool bound = n >= 0 && s->names[n].lineage == x->l.lineage.id.lo;
        if (bound) {
            s->names[n].members |= (uint8_t)(1 << i);
        }
        x->has_check = true;
        x->check_ask = action->ask;
        x->check_bound = bound;
        return;
    }
    case KVP_DO_RETIRE: {
        uint8_t retirement = new_retirement(s);
        for (uint32_t r = 0; r < x->l.retiring; r++) {
            unbind_lineage(s, x->l.retired[r].id.lo, i, retirement);
        }
        if (x->l.retire_name) {
            int n = find_name(s, code_of(x->l.last_name));
            if (n >= 0) {
                unbind_lineage(s, s->names[n].lineage, i, retirement);
            }
        }
        x->has_ret = true;
        x->ret_ask = action->ask;
        x->ret_id = retirement;
        return;
    }
    case KVP_DO_LEAVE_NAME: {
        int n = find_name(s, code_of(action->name));
        if (s->reach[i] && n >= 0) {
            s->names[n].members &= (uint8_t) ~(1 << i);
        }
        return;
    }
    case KVP_DO_ABANDON:
        return;
    case KVP_DO_MEMBER_LEFT:
        s->waiting[action->retirement] &= (uint8_t) ~(1 << i);
        return;
    }
}

#define EVENT(s, i, name, ...)                                                                     \
    do {                                                                                           \
        struct kvp_lineage_out out_;                                                               \
        out_.n = 0;                                                                                \
        drawing = (s);                                                                             \
        kvp_lineage_##name(&(s)->in[i].l, ##__VA_ARGS__, &out_);                                   \
        for (uint32_t a_ = 0; a_ < out_.n; a_++) {                                                 \
            run_action((s), (i), &out_.actions[a_]);                                               \
        }                                                                                          \
    } while (0)

/* ---- ghosts ---- */

static bool in_lins(const struct inst *x, uint64_t lineage)
{
    for (int n = 0; n < x->nlins; n++) {
        if (x->lins[n] == lineage) {
            return true;
        }
    }
    return false;
}

static void mark(struct state *s, int i, uint8_t bits)
{
    const struct inst *who = &s->in[i];
    for (int n = 0; n < s->nobjs; n++) {
        s->objs[n].mask |= in_lins(who, s->objs[n].lineage) ? bits : 0;
    }
    for (int n = 0; n < s->nputs; n++) {
        s->puts[n].mask |= in_lins(who, s->puts[n].lineage) ? bits : 0;
    }
    for (int j = 0; j < 2; j++) {
        struct inst *x = &s->in[j];
        if (in_lins(who, x->l.lineage.id.lo) || in_lins(who, x->el)) {
            x->loc_mask |= x->has_loc ? bits : 0;
            x->req_mask |= x->has_req && x->req_mask != 0 ? bits : 0;
        }
    }
}

static void premark(struct inst *x, int i)
{
    x->loc_mask |= x->has_loc ? PRE[i] : 0;
    x->req_mask |= x->has_req && x->req_mask != 0 ? PRE[i] : 0;
}

static uint8_t post(uint8_t mask, int i, bool ok)
{
    if ((mask & PRE[i]) == 0) {
        return mask;
    }
    return (uint8_t)((mask & ~PRE[i]) | (ok ? P[i] : 0));
}

static void postmark(struct state *s, int i, bool ok)
{
    for (int n = 0; n < s->nobjs; n++) {
        s->objs[n].mask = post(s->objs[n].mask, i, ok);
    }
    for (int n = 0; n < s->nputs; n++) {
        s->puts[n].mask = post(s->puts[n].mask, i, ok);
    }
    for (int j = 0; j < 2; j++) {
        s->in[j].loc_mask = post(s->in[j].loc_mask, i, ok);
        s->in[j].req_mask = post(s->in[j].req_mask, i, ok);
    }
}

static void judge(const char *what, const struct state *s, int i, uint8_t mask)
{
    const struct inst *x = &s->in[i];
    if ((mask & 15) != 1 << x->ew || (mask & P[i]) != 0) {
        violate(what, i, mask, x->ew);
    }
}

/* ---- what the daemon does with its operation when something came ---- */

static bool open_(const struct inst *x)
{
    return x->up && kvp_lineage_open(&x->l);
}

static void own_reset(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    (void)s;
    push(x,
         (struct msg){
             .kind = M_RESET, .ask = kvp_lineage_reset_begin(&x->l), .preempt = true, .own = true});
}

/* The leaving was acknowledged. */
static void op_acked(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    switch (x->op) {
    case OP_SLEEP:
    case OP_PAUSE:
        own_reset(s, i);
        break;
    case OP_RESET:
        x->op = OP_RESET2;
        own_reset(s, i);
        break;
    case OP_UPDATE:
        x->upd = x->op_target;
        x->op = OP_NONE;
        break;
    default:
        break;
    }
}

static void op_reset_done(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    switch (x->op) {
    case OP_SLEEP:
        x->slp = 1;
        x->op = OP_NONE;
        EVENT(s, i, resident, false, &draw);
        break;
    case OP_PAUSE:
        x->op = OP_NONE;
        break;
    case OP_RESET2:
        x->op = OP_RETIRE;
        break;
    default:
        break;
    }
}

static void give(struct state *s, int i, uint8_t code)
{
    EVENT(s, i, version, text_of(code));
}

static uint8_t version_of(uint8_t w)
{
    return lens->names == CONST_NAME ? 20 : (uint8_t)(10 + w);
}

static void woken(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    if (x->wch) {
        EVENT(s, i, written, &draw);
    }
    if (x->slp == 0) {
        EVENT(s, i, resident, true, &draw);
    }
}

static void hello(struct state *s, int i, bool living)
{
    struct inst *x = &s->in[i];
    struct kvb_lineage retired[3];
    for (int r = 0; r < x->nep; r++) {
        retired[r].id = (struct kvb_id){0, x->ep[r]};
    }
    struct kvp_lineage_hello h = {
        .living = living,
        .tracks = lens->tracks,
        .fingerprints = lens->names == FP,
        .lineage = {{0, x->el}},
        .token = {{0, x->es}},
        .name = text_of(x->en),
        .weights_name = "",
        .update = x->upd != 0 || (living && x->l.update),
        .written = x->wch,
        .local_reset_done = x->rst,
        .resident = x->slp == 0,
        .stopped = x->paused,
        .retired = retired,
        .nretired = x->nep,
    };
    x->nq = 0;
    memset(x->q, 0, sizeof x->q);
    EVENT(s, i, attached, &h, &draw);
}

static void engine_handles(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    struct msg msg = x->q[0];
    memmove(&x->q[0], &x->q[1], (Q_MAX - 1) * sizeof x->q[0]);
    memset(&x->q[Q_MAX - 1], 0, sizeof x->q[0]);
    x->nq--;
    bool holds = x->has_req && x->req_mask != 0;
    bool was_left;
    switch (msg.kind) {
    case M_LINEAGE:
        if (msg.left) {
            x->rst = !x->has_loc && !holds;
        }
        x->el = msg.lineage;
        x->es = msg.token;
        x->en = msg.name;
        x->nep = msg.nretired;
        memcpy(x->ep, msg.retired, sizeof x->ep);
        x->wch = false;
        was_left = x->l.ack == KVP_ACK_LEFT;
        EVENT(s, i, acked, msg.ask);
        if (was_left && x->l.ack != KVP_ACK_LEFT) {
            op_acked(s, i);
        }
        return;
    case M_RESET: {
        kvb_status_t status = KVB_OK;
        if (holds && !msg.preempt) {
            status = KVB_ERR_BUSY;
        } else {
            if (holds) {
                x->req_mask = 0;
                x->req_phase = 0;
            }
            x->has_loc = false;
            x->loc_mask = 0;
            x->loc_token = 0;
            x->rst = true;
        }
        if (msg.own) {
            EVENT(s, i, local_reset, msg.ask, status);
            op_reset_done(s, i);
        } else {
            EVENT(s, i, local_reset, msg.ask, status);
        }
        return;
    }
    default:
        x->has_fp = true; /* on its way back */
        x->fp_ask = msg.ask;
        x->fp_value = x->ew;
        return;
    }
}

static void fp_arrives(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    char text[8];
    snprintf(text, sizeof text, "f%u", x->fp_value);
    uint32_t ask = x->fp_ask;
    x->has_fp = false;
    x->fp_ask = 0;
    x->fp_value = 0;
    EVENT(s, i, fingerprint, ask, KVB_OK, text);
}

static void join_arrives(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    uint32_t ask = x->join_ask;
    struct kvb_lineage lineage = {{0, x->join_lineage}};
    x->has_join = false;
    x->join_ask = 0;
    x->join_lineage = 0;
    EVENT(s, i, resolved, ask, KVB_OK, lineage, &draw);
}

static void check_arrives(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    uint32_t ask = x->check_ask;
    bool bound = x->check_bound;
    x->has_check = false;
    x->check_ask = 0;
    x->check_bound = false;
    EVENT(s, i, checked, ask, KVB_OK, bound, &draw);
}

static void told_arrives(struct state *s, int i, int t)
{
    struct inst *x = &s->in[i];
    struct told told = x->told[t];
    x->told[t] = x->told[--x->ntold];
    memset(&x->told[x->ntold], 0, sizeof x->told[0]);
    if (told.tenant) {
        EVENT(s, i, told_tenant, told.retirement, &draw);
    } else {
        EVENT(s, i, told, (struct kvb_lineage){{0, told.lineage}}, told.retirement, &draw);
    }
}

/* How the retirement asked for went: all left, or one did not answer. */
static void ret_ends(struct state *s, int i, bool ok)
{
    struct inst *x = &s->in[i];
    uint32_t ask = x->ret_ask;
    x->has_ret = false;
    x->ret_ask = 0;
    x->ret_id = 0;
    if (x->op == OP_RETIRE) {
        x->op = OP_NONE;
        mark(s, i, ok ? P[0] | P[1] : P[i]);
        postmark(s, i, ok);
        x->nlins = 0;
        memset(x->lins, 0, sizeof x->lins);
    }
    EVENT(s, i, retired, ask, ok ? KVB_OK : KVB_ERR_TIMEOUT);
}

/* The coordinator is away at the end of a reset: success:false. */
static void reset_undelivered(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    x->op = OP_NONE;
    mark(s, i, P[i]);
    postmark(s, i, false);
    x->nlins = 0;
    memset(x->lins, 0, sizeof x->lins);
}

static void crash_daemon(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    x->up = false;
    make_earlier(s, i);
    if (x->op == OP_RETIRE || x->op == OP_RESET || x->op == OP_RESET2) {
        mark(s, i, 0);
    }
    x->op = OP_NONE;
    x->op_target = 0;
    x->nlins = 0;
    memset(x->lins, 0, sizeof x->lins);
    x->opted = false;
    memset(&x->l, 0, sizeof x->l);
    x->nq = 0;
    memset(x->q, 0, sizeof x->q);
    x->has_join = x->has_check = x->has_fp = x->has_ret = false;
    x->join_ask = x->check_ask = x->fp_ask = x->ret_ask = 0;
    x->join_lineage = 0;
    x->check_bound = false;
    x->fp_value = x->ret_id = 0;
    x->ntold = 0;
    memset(x->told, 0, sizeof x->told);
    if (x->has_req && x->req_phase == 1) {
        x->req_mask = 0;
        x->req_phase = 0;
    }
}

static void start_daemon(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    x->up = true;
    drawing = s;
    kvp_lineage_init(&x->l, true, KVP_UNVERSIONED_OFF, &draw);
    x->l.reachable = s->reach[i];
    s->leased[i] = s->reach[i];
    hello(s, i, false);
}

static void crash_engine(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    x->ew = x->upd = x->slp = 0;
    x->has_loc = x->has_req = false;
    x->loc_mask = x->req_mask = x->req_phase = 0;
    x->loc_token = x->req_token = 0;
    x->el = x->es = 0;
    x->en = 0;
    x->rst = true;
    x->wch = false;
    x->paused = false;
    x->nep = 0;
    memset(x->ep, 0, sizeof x->ep);
    if (!x->up) {
        return;
    }
    if (x->op == OP_RETIRE || x->op == OP_RESET || x->op == OP_RESET2) {
        reset_undelivered(s, i);
    }
    x->op = OP_NONE;
    x->op_target = 0;
    x->opted = false;
    x->has_fp = false;
    x->fp_ask = 0;
    x->fp_value = 0;
    EVENT(s, i, detached);
    x->l.update = false; /* the new engine's account, see hello() */
    hello(s, i, true);
}

/* ---- all that may happen next ---- */

typedef void (*emit_fn)(const struct state *next, const char *label, int who);
static emit_fn emit_to;
static struct state work;

static void emit(const char *label, int who)
{
    const struct state *s = &work;
    for (int j = 0; j < 2 && lens->names != CONST_NAME; j++) {
        const struct inst *y = &s->in[j];
        if (open_(y) && kvp_lineage_named(&y->l) && code_of(y->l.joined_name) % 10 != y->ew) {
            violate("open in the lineage of another name", j, code_of(y->l.joined_name), y->ew);
        }
    }
    emit_to(s, label, who);
}

#define TRY(condition, label, who, ...)                                                            \
    do {                                                                                           \
        if (condition) {                                                                           \
            work = *s;                                                                             \
            last_drawn = 0;                                                                        \
            struct inst *y = &work.in[who];                                                        \
            (void)y;                                                                               \
            __VA_ARGS__                                                                            \
            emit(label, who);                                                                      \
        }                                                                                          \
    } while (0)

static bool may(const struct state *s, enum budget b, int i)
{
    return s->budget[b] > 0 && (lens->who[b] == 0 || (lens->who[b] >> i & 1) != 0);
}

static void request_events(const struct state *s, int i, bool run)
{
    const struct inst *x = &s->in[i];
    TRY(!x->has_req && run && may(s, B_req, i), "request starts", i, {
        work.budget[B_req]--;
        y->has_req = true;
        y->req_token = y->es;
    });
    if (!x->has_req) {
        return;
    }
    if (run) {
        TRY(x->req_phase == 0 && x->has_loc, "local prefix hit", i, {
            if (lens->tracks) {
                y->req_token = y->loc_token;
            }
            y->req_mask = y->loc_mask;
            y->req_phase = 3;
        });
        bool computes = (x->req_phase == 0 || x->req_phase == 3) &&
                        ((x->req_mask | 1 << x->ew) != x->req_mask || x->req_phase == 0);
        TRY(computes, "computes a block", i, {
            y->req_mask |= (uint8_t)(1 << y->ew);
            y->req_phase = 3;
        });
        if (x->req_phase == 0 && open_(x) && x->req_token == x->l.token.id.lo) {
            for (int o = 0; o < s->nobjs; o++) {
                TRY(s->objs[o].lineage == x->l.lineage.id.lo, "lookup promises", i, {
                    y->req_mask = s->objs[o].mask;
                    y->req_phase = 1;
                    judge("P1 promised", &work, i, y->req_mask);
                });
            }
        }
    }
    TRY(x->req_phase == 1 && x->up && x->slp == 0, "get completes", i, {
        if (open_(y) && y->req_token == y->l.token.id.lo) {
            judge("P1 received", &work, i, y->req_mask);
            y->req_phase = 3;
        } else {
            y->req_mask = 0;
            y->req_phase = 0;
        }
    });
    bool put_there =
        s->nputs > 0 && s->puts[0].lineage == x->l.lineage.id.lo && s->puts[0].mask == x->req_mask;
    TRY(x->req_phase == 3 && open_(x) && x->req_token == x->l.token.id.lo && s->nputs < 2 &&
            !put_there,
        "put starts", i, {
            work.puts[work.nputs].lineage = y->l.lineage.id.lo;
            work.puts[work.nputs++].mask = y->req_mask;
        });
    TRY(x->req_phase == 3, "request ends, block cached", i, {
        y->has_loc = true;
        y->loc_mask = y->req_mask;
        y->loc_token = y->req_token;
        y->has_req = false;
        y->req_mask = y->req_phase = 0;
        y->req_token = 0;
    });
}

static void weight_events(const struct state *s, int i)
{
    const struct inst *x = &s->in[i];
    TRY(x->upd != 0 && x->ew != x->upd - 1, "weights really become", i, {
        y->ew = (uint8_t)(y->upd - 1);
        y->wch = true;
    });
    /* Unseen, asleep; not when the trainer vouched for them (opt-out, or a version already given).
     */
    bool vouched = lens->names == VER && x->l.held[0] != '\0';
    if (x->slp != 0 && may(s, B_real, i) && x->upd == 0 && !x->opted && !vouched) {
        for (uint8_t w = 0; w <= lens->maxw; w++) {
            TRY(w != x->ew, "weights really become (asleep, unseen)", i, {
                work.budget[B_real]--;
                y->ew = w;
                y->wch = true;
            });
        }
    }
    TRY(may(s, B_ce, i), "engine crashes, restarts with base weights, attaches", i, {
        work.budget[B_ce]--;
        crash_engine(&work, i);
    });
}

static void sleep_events(const struct state *s, int i)
{
    const struct inst *x = &s->in[i];
    bool idle = x->op == OP_NONE;
    bool awake = x->slp == 0;
    for (int opt = 0; opt <= 1; opt++) {
        TRY(idle && awake && may(s, B_slp, i) && (!opt || s->budget[B_opt] > 0),
            opt ? "sleep?level=1&reset_external=false" : "sleep?level=1", i, {
                work.budget[B_slp]--;
                if (!lens->keep) {
                    y->has_req = false;
                    y->req_mask = y->req_phase = 0;
                    y->req_token = 0;
                } else if (opt) {
                    y->req_mask = y->req_phase = 0;
                }
                if (opt) {
                    work.budget[B_opt]--;
                    y->opted = true;
                    y->has_loc = false;
                    y->loc_mask = 0;
                    y->loc_token = 0;
                    y->rst = true;
                    y->slp = 1;
                    kvp_lineage_opt_out(&y->l);
                    EVENT(&work, i, resident, false, &draw);
                } else {
                    y->op = OP_SLEEP;
                    EVENT(&work, i, leave, KVP_LEAVE_SLEEP, true, &draw);
                }
            });
    }
    TRY(idle && x->slp == 1 && x->l.opted_out && s->budget[B_step2] > 0,
        "sleep?level=1 again, without the opt-out", i, {
            work.budget[B_step2]--;
            y->opted = false;
            y->op = OP_SLEEP;
            EVENT(&work, i, leave, KVP_LEAVE_SLEEP, true, &draw);
        });
    if (!idle || awake || x->l.ack == KVP_ACK_LEFT) {
        return;
    }
    TRY(x->slp == 1, "wake_up?tags=weights", i, {
        y->slp = 2;
        woken(&work, i);
    });
    TRY(x->upd == 0, "wake_up", i, {
        y->slp = 0;
        y->opted = false;
        woken(&work, i);
    });
    TRY(x->upd == 0 && lens->names != FP && may(s, B_give, i), "wake_up?weight_version", i, {
        work.budget[B_give]--;
        y->slp = 0;
        y->opted = false;
        woken(&work, i);
        give(&work, i, version_of(y->ew));
    });
}

static void update_events(const struct state *s, int i)
{
    const struct inst *x = &s->in[i];
    bool idle = x->op == OP_NONE;
    if (idle && may(s, B_upd, i) && (x->slp == 0 || x->slp == 2) && x->upd == 0 && !x->l.update &&
        x->l.ack != KVP_ACK_LEFT) {
        for (uint8_t w = 0; w <= lens->maxw; w++) {
            TRY(w != x->ew, "start_weight_update", i, {
                work.budget[B_upd]--;
                y->op = OP_UPDATE;
                y->op_target = (uint8_t)(w + 1);
                EVENT(&work, i, update_begins, &draw);
            });
        }
    }
    if (!idle || x->upd == 0) {
        return;
    }
    uint8_t target = (uint8_t)(x->upd - 1);
    for (int named = 0; named <= (lens->names != FP); named++) {
        TRY(x->ew == target, named ? "finish_weight_update, version" : "finish_weight_update", i, {
            y->upd = 0;
            if (named) {
                give(&work, i, version_of(target));
            }
            EVENT(&work, i, update_ends, true, true, &draw);
        });
    }
    /* Half loaded, a version given for it, and then only resumed instead of finished. */
    TRY(may(s, B_cut, i) && x->ew != MIX, "half loaded, version given, then /resume", i, {
        work.budget[B_cut]--;
        y->ew = MIX;
        y->upd = 0;
        y->wch = true;
        give(&work, i, version_of(target));
        EVENT(&work, i, update_ends, false, false, &draw);
    });
    TRY(may(s, B_early, i) && lens->names != FP, "update_weight_version during the update", i, {
        work.budget[B_early]--;
        give(&work, i, version_of(target));
    });
    TRY(may(s, B_tmo, i) && x->ew != target, "the relayed call times out", i,
        { work.budget[B_tmo]--; });
}

static void cache_events(const struct state *s, int i)
{
    const struct inst *x = &s->in[i];
    bool idle = x->op == OP_NONE;
    bool awake = x->slp == 0;
    TRY(idle && awake && may(s, B_pau, i), "pause?clear_cache=true", i, {
        work.budget[B_pau]--;
        y->op = OP_PAUSE;
        EVENT(&work, i, leave, KVP_LEAVE_PAUSE, true, &draw);
    });
    TRY(idle && awake && x->upd == 0 && may(s, B_rst, i), "reset_external: leave", i, {
        work.budget[B_rst]--;
        premark(y, i);
        y->op = OP_RESET;
        y->lins[y->nlins++] = y->l.lineage.id.lo;
        int n = find_name(&work, code_of(y->l.last_name));
        if (n >= 0 && work.names[n].lineage != y->lins[0]) {
            y->lins[y->nlins++] = work.names[n].lineage;
        }
        EVENT(&work, i, leave, KVP_LEAVE_RESET, true, &draw);
    });
    TRY(x->op == OP_RETIRE && !x->has_ret && x->l.nretired > 0 && x->l.retire_ask == 0,
        "reset_external: coordinator away, success:false", i, { reset_undelivered(&work, i); });
    TRY(x->has_ret && s->waiting[x->ret_id] == 0, "retired, all members left", i,
        { ret_ends(&work, i, true); });
    TRY(x->has_ret && s->waiting[x->ret_id] != 0, "retired, a member does not answer", i,
        { ret_ends(&work, i, false); });
    TRY(x->l.reset_refused && !(x->has_req && x->req_mask != 0), "reports that nothing is held", i,
        { EVENT(&work, i, report); });
    TRY(idle && may(s, B_ten, i) && s->reach[i], "tenant reset", i, {
        work.budget[B_ten]--;
        uint8_t retirement = new_retirement(&work);
        for (int j = 0; j < 2; j++) {
            struct inst *o = &work.in[j];
            /* One whose lease has ended has left; what it is in since then is its own until it is
             * back, when it is told. */
            if (!o->up || work.leased[j]) {
                y->lins[y->nlins++] = o->up ? o->l.lineage.id.lo : o->el;
                premark(o, i);
            }
            if (o->up) {
                tell(&work, j, 0, retirement, true);
            } else {
                work.waiting[retirement] |= (uint8_t)(4 << j);
            }
        }
        while (work.nnames > 0) {
            unbind(&work, 0);
        }
        y->op = OP_TENANT;
        y->retirement = retirement;
    });
    bool all_left = x->op == OP_TENANT && s->waiting[x->retirement] == 0;
    TRY(all_left, "tenant reset answers success:true", i, {
        y->op = OP_NONE;
        mark(&work, i, P[0] | P[1]);
        postmark(&work, i, true);
        y->nlins = 0;
        memset(y->lins, 0, sizeof y->lins);
        y->retirement = 0;
    });
    TRY(x->op == OP_TENANT && !all_left, "tenant reset: a member does not answer", i, {
        y->op = OP_NONE;
        postmark(&work, i, false);
        y->nlins = 0;
        memset(y->lins, 0, sizeof y->lins);
        y->retirement = 0;
    });
    TRY(lens->names != FP && idle && awake && x->upd == 0 && !x->l.update && x->ew != MIX &&
            may(s, B_give, i),
        "update_weight_version", i, {
            work.budget[B_give]--;
            give(&work, i, version_of(y->ew));
        });
}

static void reach_events(const struct state *s, int i)
{
    TRY(s->reach[i] && may(s, B_part, i), "coordinator unreachable", i, {
        work.budget[B_part]--;
        work.reach[i] = false;
        EVENT(&work, i, reachable, false);
    });
    TRY(!s->reach[i] && s->leased[i] && lens->budget[B_lease] > 0,
        "its lease has ended by its own clock", i, {
            work.leased[i] = false;
            EVENT(&work, i, lost, &draw);
        });
    TRY(!s->reach[i], "coordinator reachable again", i, {
        work.reach[i] = work.leased[i] = true;
        work.gone[i] = false;
        EVENT(&work, i, reachable, true);
    });
}

static void successors(const struct state *s)
{
    for (int p = 0; p < s->nputs; p++) {
        work = *s;
        uint64_t lineage = s->puts[p].lineage;
        uint8_t mask = s->puts[p].mask;
        work.puts[p] = work.puts[--work.nputs];
        memset(&work.puts[work.nputs], 0, sizeof work.puts[0]);
        bool there = false;
        for (int o = 0; o < work.nobjs; o++) {
            there = there || work.objs[o].lineage == lineage;
        }
        if (!there) { /* the first stays */
            kvb_assert(work.nobjs < 8);
            work.objs[work.nobjs].lineage = lineage;
            work.objs[work.nobjs++].mask = mask;
            for (int j = 0; j < 2; j++) {
                const struct inst *y = &work.in[j];
                if (open_(y) && y->l.lineage.id.lo == lineage && (mask & 15) != 1 << y->ew) {
                    violate("put under the lineage of", j, mask, y->ew);
                }
            }
        }
        emit("put commits", p);
    }
    for (int i = 0; i < 2; i++) {
        const struct inst *x = &s->in[i];
        bool run = x->slp == 0 && !x->paused && !(x->up && x->op == OP_SLEEP);
        request_events(s, i, run);
        weight_events(s, i);
        TRY(!x->up, "daemon restarts, hello", i, { start_daemon(&work, i); });
        if (!x->up) {
            continue;
        }
        TRY(may(s, B_cd, i), "daemon crashes", i, {
            work.budget[B_cd]--;
            crash_daemon(&work, i);
        });
        TRY(x->nq > 0, "engine handles a message", i, { engine_handles(&work, i); });
        TRY(x->nq > 0 && x->q[0].kind == M_LINEAGE && may(s, B_relink, i),
            "link drops before the acknowledgement, engine attaches again, echoing", i, {
                work.budget[B_relink]--;
                if (y->op >= OP_RESET && y->op <= OP_RETIRE) {
                    reset_undelivered(&work, i); /* answered: the engine went away */
                }
                y->op = OP_NONE;
                EVENT(&work, i, detached);
                hello(&work, i, true);
            });
        sleep_events(s, i);
        update_events(s, i);
        cache_events(s, i);
        TRY(x->has_fp, "fingerprint arrives", i, { fp_arrives(&work, i); });
        TRY(x->has_join, "the coordinator's lineage arrives", i, { join_arrives(&work, i); });
        TRY(x->has_check, "the coordinator's check arrives", i, { check_arrives(&work, i); });
        for (int t = 0; t < x->ntold && s->reach[i]; t++) {
            TRY(true, "is told of a retirement", i, { told_arrives(&work, i, t); });
        }
        reach_events(s, i);
    }
    for (int i = 0; i < 2; i++) {
        TRY(s->in[i].up && !s->leased[i] && !s->gone[i] && s->budget[B_lease] > 0,
            "lease ends at the coordinator", i, {
                work.budget[B_lease]--;
                work.gone[i] = true;
                end_lease(&work, i);
            });
        TRY(counts(s, i + 2), "lease of an earlier life ends at the coordinator", i,
            { end_lease(&work, i + 2); });
    }
    for (int n = 0; n < s->nnames && lens->budget[B_lease] > 0; n++) {
        TRY(s->names[n].members == 0, "a name is forgotten", 0, { unbind(&work, n); });
    }
}

/* ---- packed, canonical states ---- */

struct packed_lineage {
    uint8_t flags[4];
    uint8_t ack, kind, unnamed;
    uint16_t lineage, token, last_lineage;
    uint8_t joined, name, last, version, held;
    uint8_t send, reset, resolve, fp, check, retire; /* ask numbers, canonical */
    uint8_t nretired, retiring, ntold;
    uint16_t retired[3];
    uint8_t told[3];
};

struct renaming {
    uint64_t ids[64];
    uint16_t n;
};

static uint16_t rename_id(struct renaming *r, uint64_t id)
{
    if (id == 0 || id == DEAD) {
        return (uint16_t)id;
    }
    for (uint16_t n = 0; n < r->n; n++) {
        if (r->ids[n] == id) {
            return (uint16_t)(n + 1);
        }
    }
    kvb_assert(r->n < 64);
    r->ids[r->n++] = id;
    return r->n;
}

static bool known_id(const struct renaming *r, uint64_t id)
{
    for (uint16_t n = 0; n < r->n; n++) {
        if (r->ids[n] == id) {
            return true;
        }
    }
    return false;
}

#define FLAGS(X)                                                                                   \
    X(0, attached)                                                                                 \
    X(0, local_reset_done)                                                                         \
    X(0, reset_owned)                                                                              \
    X(0, reset_refused)                                                                            \
    X(0, update)                                                                                   \
    X(0, resident)                                                                                 \
    X(0, echoed)                                                                                   \
    X(0, want_join)                                                                                \
    X(1, proven)                                                                                   \
    X(1, changed)                                                                                  \
    X(1, vouched)                                                                                  \
    X(1, stopped)                                                                                  \
    X(1, opted_out)                                                                                \
    X(1, fingerprint_failed)                                                                       \
    X(1, reachable)                                                                                \
    X(1, retire_name)                                                                              \
    X(2, tracks) X(2, fingerprints) X(2, coordinator) X(2, written_since_step) X(2, starved)

static void pack_lineage(const struct kvp_lineage *l, struct packed_lineage *p, struct renaming *r,
                         uint8_t asks[6])
{
    memset(p, 0, sizeof *p);
    unsigned bit[4] = {0};
#define X(byte, field) p->flags[byte] |= (uint8_t)((l->field ? 1u : 0u) << bit[byte]++);
    FLAGS(X)
#undef X
    p->ack = (uint8_t)l->ack;
    p->kind = (uint8_t)l->kind;
    p->unnamed = (uint8_t)l->unnamed;
    p->lineage = rename_id(r, l->lineage.id.lo);
    p->token = rename_id(r, l->token.id.lo);
    p->last_lineage = rename_id(r, l->last_lineage.id.lo);
    p->joined = code_of(l->joined_name);
    p->name = code_of(l->name);
    p->last = code_of(l->last_name);
    p->version = code_of(l->version);
    p->held = code_of(l->held);
    memcpy(&p->send, asks, 6);
    kvb_assert(l->nretired <= 3 && l->ntold <= 3);
    p->nretired = (uint8_t)l->nretired;
    p->retiring = (uint8_t)l->retiring;
    p->ntold = (uint8_t)l->ntold;
    for (uint32_t n = 0; n < l->nretired; n++) {
        p->retired[n] = rename_id(r, l->retired[n].id.lo);
    }
    for (uint32_t n = 0; n < l->ntold; n++) {
        p->told[n] = (uint8_t)l->told[n];
    }
}

static void unpack_lineage(const struct packed_lineage *p, struct kvp_lineage *l)
{
    memset(l, 0, sizeof *l);
    unsigned bit[4] = {0};
#define X(byte, field) l->field = (p->flags[byte] >> bit[byte]++ & 1) != 0;
    FLAGS(X)
#undef X
    l->ack = (enum kvp_ack)p->ack;
    l->kind = (enum kvp_name_kind)p->kind;
    l->unnamed = (enum kvp_private)p->unnamed;
    l->lineage.id.lo = p->lineage;
    l->token.id.lo = p->token;
    l->last_lineage.id.lo = p->last_lineage;
    memcpy(l->joined_name, text_of(p->joined), sizeof l->joined_name);
    memcpy(l->name, text_of(p->name), sizeof l->name);
    memcpy(l->last_name, text_of(p->last), sizeof l->last_name);
    memcpy(l->version, text_of(p->version), sizeof l->version);
    memcpy(l->held, text_of(p->held), sizeof l->held);
    l->send_ask = p->send;
    l->reset_ask = p->reset;
    l->resolve_ask = p->resolve;
    l->fingerprint_ask = p->fp;
    l->check_ask = p->check;
    l->retire_ask = p->retire;
    l->asks = 10;
    l->nretired = p->nretired;
    l->retiring = p->retiring;
    l->ntold = p->ntold;
    for (uint32_t n = 0; n < l->nretired; n++) {
        l->retired[n].id.lo = p->retired[n];
    }
    for (uint32_t n = 0; n < l->ntold; n++) {
        l->told[n] = p->told[n];
    }
}

/* The engine's and the wires' part, with everything renamed; the lineage packed behind it. */
struct packed {
    struct packed_lineage l[2];
    struct {
        uint8_t engine[10];
        uint8_t masks[3];
        uint16_t loc, req, el, es, ep[3];
        uint8_t nq;
        struct {
            uint8_t kind, flags, ask, name, nretired;
            uint16_t lineage, token, retired[3];
        } q[Q_MAX];
        uint8_t op[4];
        uint16_t lins[2];
        uint8_t wires[4], join_ask, check_ask, fp_ask, fp_value, ret_ask, ret_id;
        uint16_t join;
        uint8_t ntold;
        struct {
            uint16_t lineage;
            uint8_t retirement, tenant;
        } told[4];
    } in[2];
    uint8_t reach[2], nnames, nobjs, nputs, nretirements;
    struct {
        uint8_t name, members;
        uint16_t lineage;
    } names[NAMES_MAX];
    struct {
        uint16_t lineage;
        uint8_t mask;
    } objs[8], puts[2];
    uint8_t waiting[8];
    uint8_t budget[B_COUNT];
};

/* An answer whose ask is not waited for any more is void: it need not be told apart from none. */
static void drop_void(struct state *s)
{
    for (int i = 0; i < 2; i++) {
        struct inst *x = &s->in[i];
        if (x->has_join && x->join_ask != x->l.resolve_ask) {
            x->has_join = false;
            x->join_ask = 0;
            x->join_lineage = 0;
        }
        if (x->has_fp && x->fp_ask != x->l.fingerprint_ask) {
            x->has_fp = false;
            x->fp_ask = 0;
            x->fp_value = 0;
        }
        if (x->has_check && x->check_ask != x->l.check_ask) {
            x->has_check = false;
            x->check_ask = 0;
            x->check_bound = false;
        }
    }
}

static void order_names(struct packed *p)
{
    for (int a = 1; a < p->nnames; a++) {
        for (int b = a; b > 0 && p->names[b].name < p->names[b - 1].name; b--) {
            __typeof__(p->names[0]) swap = p->names[b];
            p->names[b] = p->names[b - 1];
            p->names[b - 1] = swap;
        }
    }
}

static void pack(const struct state *given, struct packed *p)
{
    static struct state copy;
    copy = *given;
    struct state *s = &copy;
    drop_void(s);
    memset(p, 0, sizeof *p);
    struct renaming r = {.n = 0};
    for (int i = 0; i < 2; i++) {
        struct inst *x = &s->in[i];
        /* ask numbers: each kind has at most one that counts */
        uint8_t asks[6] = {x->l.send_ask ? 1 : 0,    x->l.reset_ask ? 2 : 0,
                           x->l.resolve_ask ? 3 : 0, x->l.fingerprint_ask ? 4 : 0,
                           x->l.check_ask ? 5 : 0,   x->l.retire_ask ? 6 : 0};
        pack_lineage(&x->l, &p->l[i], &r, asks);
        p->in[i].el = rename_id(&r, x->el);
        p->in[i].es = rename_id(&r, x->es);
        p->in[i].nq = x->nq;
        for (int q = 0; q < x->nq; q++) {
            const struct msg *m = &x->q[q];
            uint32_t counts = m->kind == M_LINEAGE ? x->l.send_ask
                              : m->kind == M_RESET ? x->l.reset_ask
                                                   : x->l.fingerprint_ask;
            uint8_t number = m->kind == M_LINEAGE ? 1 : m->kind == M_RESET ? 2 : 4;
            p->in[i].q[q].kind = m->kind;
            p->in[i].q[q].flags = (uint8_t)(m->left | m->preempt << 1 | m->own << 2);
            p->in[i].q[q].ask = m->ask == counts ? number : 9;
            p->in[i].q[q].name = m->name;
            p->in[i].q[q].nretired = m->nretired;
            p->in[i].q[q].lineage = rename_id(&r, m->lineage);
            p->in[i].q[q].token = rename_id(&r, m->token);
            for (int n = 0; n < 3; n++) {
                p->in[i].q[q].retired[n] = rename_id(&r, m->retired[n]);
            }
        }
        for (int n = 0; n < 3; n++) {
            p->in[i].ep[n] = rename_id(&r, x->ep[n]);
        }
        for (int n = 0; n < 2; n++) {
            p->in[i].lins[n] = rename_id(&r, x->lins[n]);
        }
        p->in[i].join = rename_id(&r, x->join_lineage);
        p->in[i].ntold = x->ntold;
        for (int n = 0; n < x->ntold; n++) {
            p->in[i].told[n].lineage = rename_id(&r, x->told[n].lineage);
            p->in[i].told[n].retirement = x->told[n].retirement;
            p->in[i].told[n].tenant = x->told[n].tenant;
        }
        uint8_t engine[10] = {x->ew,      x->upd,       x->slp, x->paused, x->has_loc,
                              x->has_req, x->req_phase, x->rst, x->wch,    x->en};
        memcpy(p->in[i].engine, engine, sizeof engine);
        uint8_t masks[3] = {x->loc_mask, x->req_mask, x->nep};
        memcpy(p->in[i].masks, masks, sizeof masks);
        uint8_t op[4] = {x->op, x->op_target, (uint8_t)(x->nlins | x->up << 4 | x->opted << 5),
                         x->retirement};
        memcpy(p->in[i].op, op, sizeof op);
        uint8_t wires[4] = {x->has_join, (uint8_t)(x->has_check | x->check_bound << 1), x->has_fp,
                            x->has_ret};
        memcpy(p->in[i].wires, wires, sizeof wires);
        p->in[i].join_ask = x->has_join ? 3 : 0;
        p->in[i].check_ask = x->has_check ? 5 : 0;
        p->in[i].fp_ask = x->has_fp ? 4 : 0;
        p->in[i].fp_value = x->fp_value;
        p->in[i].ret_ask = !x->has_ret ? 0 : x->ret_ask == x->l.retire_ask ? 6 : 9;
        p->in[i].ret_id = x->ret_id;
    }
    for (int n = 0; n < s->nnames; n++) {
        p->names[n].name = s->names[n].name;
        p->names[n].members = s->names[n].members;
        p->names[n].lineage = rename_id(&r, s->names[n].lineage);
    }
    p->nnames = s->nnames;
    order_names(p);
    /* What nobody can name any more is gone: objects, puts, and tokens that are not current. */
    for (int n = 0; n < s->nobjs; n++) {
        if (known_id(&r, s->objs[n].lineage)) {
            p->objs[p->nobjs].lineage = rename_id(&r, s->objs[n].lineage);
            p->objs[p->nobjs++].mask = s->objs[n].mask;
        }
    }
    for (int n = 0; n < s->nputs; n++) {
        if (known_id(&r, s->puts[n].lineage)) {
            p->puts[p->nputs].lineage = rename_id(&r, s->puts[n].lineage);
            p->puts[p->nputs++].mask = s->puts[n].mask;
        }
    }
    for (int i = 0; i < 2; i++) {
        struct inst *x = &s->in[i];
        /* A token on its way to the engine can still be echoed by nobody: only these two count. */
        bool req = x->req_token == x->l.token.id.lo || x->req_token == x->es;
        bool loc = x->loc_token == x->l.token.id.lo || x->loc_token == x->es;
        p->in[i].req = x->has_req ? (req ? rename_id(&r, x->req_token) : DEAD) : 0;
        p->in[i].loc = x->has_loc && lens->tracks ? (loc ? rename_id(&r, x->loc_token) : DEAD) : 0;
    }
    memcpy(p->waiting, s->waiting, sizeof p->waiting);
    p->nretirements = s->nretirements;
    for (int i = 0; i < 2; i++) {
        p->reach[i] = (uint8_t)(s->reach[i] | s->leased[i] << 1 | s->gone[i] << 2);
    }
    memcpy(p->budget, s->budget, sizeof p->budget);
}

static void unpack(const struct packed *p, struct state *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 2; i++) {
        struct inst *x = &s->in[i];
        unpack_lineage(&p->l[i], &x->l);
        const uint8_t *e = p->in[i].engine;
        x->ew = e[0];
        x->upd = e[1];
        x->slp = e[2];
        x->paused = e[3];
        x->has_loc = e[4];
        x->has_req = e[5];
        x->req_phase = e[6];
        x->rst = e[7];
        x->wch = e[8];
        x->en = e[9];
        x->loc_mask = p->in[i].masks[0];
        x->req_mask = p->in[i].masks[1];
        x->nep = p->in[i].masks[2];
        x->loc_token = p->in[i].loc;
        x->req_token = p->in[i].req;
        x->el = p->in[i].el;
        x->es = p->in[i].es;
        x->nq = p->in[i].nq;
        for (int q = 0; q < x->nq; q++) {
            struct msg *m = &x->q[q];
            m->kind = p->in[i].q[q].kind;
            m->left = p->in[i].q[q].flags & 1;
            m->preempt = p->in[i].q[q].flags >> 1 & 1;
            m->own = p->in[i].q[q].flags >> 2 & 1;
            m->ask = p->in[i].q[q].ask;
            m->name = p->in[i].q[q].name;
            m->nretired = p->in[i].q[q].nretired;
            m->lineage = p->in[i].q[q].lineage;
            m->token = p->in[i].q[q].token;
            for (int n = 0; n < 3; n++) {
                m->retired[n] = p->in[i].q[q].retired[n];
            }
        }
        for (int n = 0; n < 3; n++) {
            x->ep[n] = p->in[i].ep[n];
        }
        for (int n = 0; n < 2; n++) {
            x->lins[n] = p->in[i].lins[n];
        }
        x->op = p->in[i].op[0];
        x->op_target = p->in[i].op[1];
        x->nlins = p->in[i].op[2] & 15;
        x->up = p->in[i].op[2] >> 4 & 1;
        x->opted = p->in[i].op[2] >> 5 & 1;
        x->retirement = p->in[i].op[3];
        x->has_join = p->in[i].wires[0];
        x->has_check = p->in[i].wires[1] & 1;
        x->check_bound = p->in[i].wires[1] >> 1 & 1;
        x->has_fp = p->in[i].wires[2];
        x->has_ret = p->in[i].wires[3];
        x->join_ask = p->in[i].join_ask;
        x->check_ask = p->in[i].check_ask;
        x->fp_ask = p->in[i].fp_ask;
        x->fp_value = p->in[i].fp_value;
        x->ret_ask = p->in[i].ret_ask;
        x->ret_id = p->in[i].ret_id;
        x->join_lineage = p->in[i].join;
        x->ntold = p->in[i].ntold;
        for (int n = 0; n < x->ntold; n++) {
            x->told[n].lineage = p->in[i].told[n].lineage;
            x->told[n].retirement = p->in[i].told[n].retirement;
            x->told[n].tenant = p->in[i].told[n].tenant;
        }
    }
    s->nnames = p->nnames;
    for (int n = 0; n < p->nnames; n++) {
        s->names[n].name = p->names[n].name;
        s->names[n].members = p->names[n].members;
        s->names[n].lineage = p->names[n].lineage;
    }
    s->nobjs = p->nobjs;
    for (int n = 0; n < p->nobjs; n++) {
        s->objs[n].lineage = p->objs[n].lineage;
        s->objs[n].mask = p->objs[n].mask;
    }
    s->nputs = p->nputs;
    for (int n = 0; n < p->nputs; n++) {
        s->puts[n].lineage = p->puts[n].lineage;
        s->puts[n].mask = p->puts[n].mask;
    }
    memcpy(s->waiting, p->waiting, sizeof s->waiting);
    s->nretirements = p->nretirements;
    for (int i = 0; i < 2; i++) {
        s->reach[i] = p->reach[i] & 1;
        s->leased[i] = p->reach[i] >> 1 & 1;
        s->gone[i] = p->reach[i] >> 2 & 1;
    }
    memcpy(s->budget, p->budget, sizeof s->budget);
}

/* ---- liveness: everything heals, and the trainer names what it loads ---- */

static bool settle_once(struct state *s, int i)
{
    struct inst *x = &s->in[i];
    if (!x->up) {
        start_daemon(s, i);
        return true;
    }
    if (!s->reach[i]) {
        s->reach[i] = s->leased[i] = true;
        s->gone[i] = false;
        EVENT(s, i, reachable, true);
        return true;
    }
    if (counts(s, i + 2)) {
        end_lease(s, i + 2);
        return true;
    }
    if (x->nq > 0) {
        engine_handles(s, i);
        return true;
    }
    if (x->has_fp) {
        fp_arrives(s, i);
        return true;
    }
    if (x->has_join) {
        join_arrives(s, i);
        return true;
    }
    if (x->has_check) {
        check_arrives(s, i);
        return true;
    }
    if (x->ntold > 0) {
        told_arrives(s, i, 0);
        return true;
    }
    if (x->has_ret) {
        ret_ends(s, i, s->waiting[x->ret_id] == 0);
        return true;
    }
    if (x->op == OP_RETIRE || x->op == OP_TENANT) {
        x->op = OP_NONE;
        x->nlins = 0;
        return true;
    }
    if (x->has_req) {
        x->has_req = false;
        x->req_mask = 0;
        x->req_token = 0;
        x->req_phase = 0;
        return true;
    }
    if (x->l.reset_refused) {
        EVENT(s, i, report);
        return true;
    }
    if (x->op != OP_NONE) {
        return false;
    }
    if (x->slp != 0 && x->upd == 0) {
        x->slp = 0;
        x->opted = false;
        woken(s, i);
        return true;
    }
    if (x->upd != 0) {
        x->ew = (uint8_t)(x->upd - 1);
        x->upd = 0;
        if (lens->names == VER) {
            give(s, i, version_of(x->ew));
        }
        EVENT(s, i, update_ends, true, true, &draw);
        return true;
    }
    return false;
}

static bool settles(const struct state *from)
{
    static struct state s;
    s = *from;
    last_drawn = 0;
    for (int round = 0; round < 200; round++) {
        bool moved = false;
        for (int i = 0; i < 2; i++) {
            last_drawn = 0;
            moved = settle_once(&s, i) || moved;
        }
        if (!moved) {
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        const struct inst *x = &s.in[i];
        if (!open_(x)) {
            violate("liveness: stays closed", i, 0, x->ew);
            return false;
        }
        if (lens->names == FP && !kvp_lineage_named(&x->l)) {
            violate("liveness: stays private though it has a fingerprint", i, 0, x->ew);
            return false;
        }
        if (x->l.want_join || x->l.nretired > 0 || x->l.ntold > 0) {
            violate("liveness: something is left undone", i, 0, x->ew);
            return false;
        }
        /* reset_external and told do not change the weights: the name stays */
        if (lens->names == VER && lens->budget[B_upd] == 0 && lens->budget[B_slp] == 0 &&
            lens->budget[B_pau] == 0 && lens->budget[B_ce] == 0 && lens->budget[B_cd] == 0 &&
            !kvp_lineage_named(&x->l)) {
            violate("liveness: the name was lost", i, 0, x->ew);
            return false;
        }
    }
    const struct inst *a = &s.in[0];
    const struct inst *b = &s.in[1];
    if (kvp_lineage_named(&a->l) && strcmp(a->l.joined_name, b->l.joined_name) == 0 &&
        a->l.lineage.id.lo != b->l.lineage.id.lo) {
        violate("liveness: one name, two lineages", 0, 0, a->ew);
        return false;
    }
    return true;
}

/* ---- search ---- */

struct node {
    struct packed state;
    uint32_t parent;
    const char *label;
    uint8_t who;
};
static struct node *nodes;
static uint32_t nnodes, cap_nodes;
static uint32_t *table;
static uint32_t table_mask;
static uint32_t expanding;
static uint32_t limit = 3000000;
static bool found;

static void trace(uint32_t n, const char *last, int who)
{
    const char *labels[256];
    int whos[256];
    int depth = 0;
    for (; n != 0 && depth < 255; n = nodes[n].parent) {
        labels[depth] = nodes[n].label;
        whos[depth++] = nodes[n].who;
    }
    printf("  VIOLATION %s (%u states)\n", violation, nnodes);
    int step = 1;
    while (depth > 0) {
        depth--;
        printf("  %2d. %c: %s\n", step++, 'A' + whos[depth], labels[depth]);
    }
    printf("  %2d. %c: %s\n", step, 'A' + who, last);
}

static void add_state(const struct state *next, const char *label, int who)
{
    if (found) {
        return;
    }
    if (violation != NULL) {
        found = true;
        trace(expanding, label, who);
        return;
    }
    if (nnodes == cap_nodes) {
        cap_nodes *= 2;
        nodes = realloc(nodes, cap_nodes * sizeof *nodes);
        kvb_assert(nodes != NULL);
    }
    struct node *node = &nodes[nnodes];
    pack(next, &node->state);
    uint32_t slot = (uint32_t)XXH3_64bits(&node->state, sizeof node->state) & table_mask;
    while (table[slot] != UINT32_MAX) {
        if (memcmp(&nodes[table[slot]].state, &node->state, sizeof node->state) == 0) {
            return;
        }
        slot = (slot + 1) & table_mask;
    }
    table[slot] = nnodes;
    node->parent = expanding;
    node->label = label;
    node->who = (uint8_t)who;
    nnodes++;
}

static void start_state(struct state *s)
{
    memset(s, 0, sizeof *s);
    bool joined = !lens->private_;
    memcpy(s->budget, lens->budget, sizeof s->budget);
    s->reach[0] = s->reach[1] = true;
    s->leased[0] = s->leased[1] = true;
    uint8_t name = lens->names == VER ? 10 : lens->names == FP ? 30 : 20;
    for (int i = 0; i < 2; i++) {
        struct inst *x = &s->in[i];
        struct kvp_lineage *l = &x->l;
        x->el = joined ? 1 : (uint64_t)(1 + i);
        x->es = (uint64_t)(3 + i);
        x->rst = true;
        x->en = joined ? name : 0;
        x->up = true;
        l->lineage.id.lo = x->el;
        l->token.id.lo = x->es;
        l->coordinator = l->reachable = l->attached = l->resident = l->local_reset_done = true;
        l->tracks = lens->tracks;
        l->fingerprints = lens->names == FP;
        l->unnamed = KVP_PRIVATE_UNNAMED;
        l->asks = 10;
        if (joined) {
            memcpy(l->joined_name, text_of(name), sizeof l->joined_name);
            memcpy(l->name, text_of(name), sizeof l->name);
            memcpy(l->last_name, text_of(name), sizeof l->last_name);
            l->last_lineage = l->lineage;
            l->kind = lens->names == FP ? KVP_NAME_FINGERPRINT : KVP_NAME_VERSION;
            if (lens->names != FP) {
                memcpy(l->version, text_of(name), sizeof l->version);
                l->proven = true;
                l->vouched = true;
            }
        }
    }
    if (joined) {
        s->nnames = 1;
        s->names[0].name = name;
        s->names[0].lineage = 1;
        s->names[0].members = 3;
    }
}

static uint64_t explored;    /* states, of all lenses */
static bool complete = true; /* every one of them to its end */

static bool explore(const struct lens *which)
{
    lens = which;
    violation = NULL;
    found = false;
    nnodes = 0;
    memset(table, 0xff, (table_mask + 1) * sizeof *table);
    emit_to = add_state;
    struct state s;
    start_state(&s);
    expanding = 0;
    add_state(&s, "start", 0);
    struct timespec t0;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    uint32_t n = 0;
    for (; n < nnodes && !found && nnodes < limit; n++) {
        expanding = n;
        unpack(&nodes[n].state, &s);
        struct packed again;
        pack(&s, &again);
        kvb_assert(memcmp(&again, &nodes[n].state, sizeof again) == 0); /* nothing is lost */
        if (lens->live && !settles(&s)) {
            found = true;
            trace(n, "everything heals and settles", 0);
            break;
        }
        successors(&s);
    }
    struct timespec t1;
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double took = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9;
    printf("%-16s %8u states %6.2f s %s\n", lens->name, nnodes, took,
           found         ? "VIOLATION"
           : n == nnodes ? "exhausted"
                         : "cut off");
    fflush(stdout);
    explored += nnodes;
    complete = complete && !found && n == nnodes;
    return !found;
}

#define A_ONLY   1
#define B_ONLY   2
#define BUD(...) .budget = {__VA_ARGS__}
#define WHO(...) .who = {__VA_ARGS__}

static const struct lens lenses[] = {
    {"update", VER, BUD([B_req] = 2, [B_upd] = 2, [B_early] = 1), .maxw = 1,
     WHO([B_early] = A_ONLY)},
    {"update-fp", FP, BUD([B_req] = 2, [B_upd] = 2), .maxw = 1, WHO([B_upd] = A_ONLY)},
    {"update-track", VER, BUD([B_req] = 2, [B_upd] = 2), .maxw = 1, .tracks = true,
     WHO([B_upd] = A_ONLY)},
    {"rollback", FP, BUD([B_req] = 2, [B_upd] = 2), .maxw = 1,
     WHO([B_upd] = A_ONLY, [B_req] = A_ONLY)},
    {"rollback-track", FP, BUD([B_req] = 3, [B_upd] = 2), .maxw = 1, .tracks = true,
     WHO([B_upd] = A_ONLY, [B_req] = A_ONLY)},
    {"update-cd", VER, BUD([B_req] = 2, [B_upd] = 1, [B_cd] = 1), .maxw = 1},
    {"update-cd-track", FP, BUD([B_req] = 2, [B_upd] = 1, [B_cd] = 1), .maxw = 1, .tracks = true,
     WHO([B_upd] = A_ONLY, [B_cd] = A_ONLY)},
    {"update-ce", VER, BUD([B_req] = 2, [B_upd] = 1, [B_ce] = 1), .maxw = 1},
    {"update-ce-fp", FP, BUD([B_req] = 2, [B_upd] = 1, [B_ce] = 1, [B_part] = 1), .maxw = 1,
     WHO([B_upd] = A_ONLY, [B_part] = A_ONLY, [B_ce] = A_ONLY)},
    {"update-part", VER, BUD([B_req] = 2, [B_upd] = 1, [B_part] = 1), .maxw = 1,
     WHO([B_part] = A_ONLY)},
    {"timeout", FP, BUD([B_req] = 2, [B_upd] = 1, [B_tmo] = 1), .maxw = 1, WHO([B_upd] = A_ONLY)},
    {"sleep", FP, BUD([B_req] = 2, [B_slp] = 1, [B_real] = 1, [B_cd] = 1), .maxw = 1, .keep = true,
     WHO([B_slp] = A_ONLY, [B_cd] = A_ONLY)},
    {"sleep-part", VER, BUD([B_req] = 2, [B_slp] = 1, [B_real] = 1, [B_give] = 1, [B_part] = 1),
     .maxw = 1, WHO([B_slp] = A_ONLY, [B_part] = A_ONLY)},
    {"optout", FP, BUD([B_req] = 2, [B_slp] = 1, [B_opt] = 1, [B_step2] = 1, [B_real] = 1),
     .maxw = 1, WHO([B_slp] = A_ONLY)},
    {"reset", VER, BUD([B_req] = 3, [B_rst] = 1), WHO([B_rst] = A_ONLY)},
    {"reset-track", VER, BUD([B_req] = 2, [B_rst] = 1), .tracks = true, WHO([B_rst] = A_ONLY)},
    {"reset-cd", VER, BUD([B_req] = 2, [B_rst] = 1, [B_cd] = 1),
     WHO([B_rst] = A_ONLY, [B_cd] = A_ONLY)},
    {"reset-cd-other", VER, BUD([B_req] = 2, [B_rst] = 1, [B_cd] = 1),
     WHO([B_rst] = A_ONLY, [B_cd] = B_ONLY, [B_req] = A_ONLY)},
    {"reset-link", VER, BUD([B_req] = 2, [B_rst] = 1, [B_relink] = 1), WHO([B_rst] = A_ONLY)},
    {"reset-part", VER, BUD([B_req] = 2, [B_rst] = 1, [B_part] = 1, [B_give] = 1),
     WHO([B_rst] = A_ONLY, [B_give] = A_ONLY, [B_part] = A_ONLY)},
    {"reset-part-other", VER, BUD([B_req] = 2, [B_rst] = 1, [B_part] = 1),
     WHO([B_rst] = A_ONLY, [B_part] = B_ONLY)},
    {"reset-part-cd", FP, BUD([B_req] = 2, [B_rst] = 1, [B_part] = 1, [B_cd] = 1),
     WHO([B_rst] = A_ONLY, [B_part] = A_ONLY, [B_cd] = A_ONLY, [B_req] = A_ONLY)},
    {"reset-pause", VER, BUD([B_req] = 2, [B_rst] = 1, [B_pau] = 1, [B_give] = 1),
     WHO([B_rst] = A_ONLY, [B_pau] = A_ONLY, [B_give] = A_ONLY)},
    {"reset-pause-part", VER,
     BUD([B_req] = 2, [B_rst] = 1, [B_pau] = 1, [B_give] = 1, [B_part] = 1),
     WHO([B_pau] = A_ONLY, [B_rst] = A_ONLY, [B_part] = A_ONLY, [B_give] = A_ONLY,
         [B_req] = A_ONLY)},
    {"reset-two", VER, BUD([B_req] = 2, [B_rst] = 2), WHO([B_req] = A_ONLY)},
    {"tenant", VER, BUD([B_req] = 2, [B_ten] = 1, [B_pau] = 1),
     WHO([B_ten] = A_ONLY, [B_pau] = B_ONLY)},
    {"tenant-cd", VER, BUD([B_req] = 2, [B_ten] = 1, [B_cd] = 1),
     WHO([B_ten] = A_ONLY, [B_cd] = B_ONLY)},
    {"tenant-join", FP, BUD([B_req] = 2, [B_ten] = 1, [B_pau] = 1),
     WHO([B_ten] = A_ONLY, [B_pau] = A_ONLY, [B_req] = A_ONLY)},
    {"lease", VER, BUD([B_req] = 2, [B_part] = 1, [B_lease] = 1, [B_upd] = 1), .maxw = 1,
     WHO([B_part] = A_ONLY, [B_upd] = B_ONLY)},
    {"lease-reset", VER, BUD([B_req] = 2, [B_part] = 1, [B_lease] = 1, [B_rst] = 1),
     WHO([B_part] = B_ONLY, [B_rst] = A_ONLY)},
    {"lease-reset-track", FP, BUD([B_req] = 2, [B_part] = 1, [B_lease] = 1, [B_rst] = 1),
     .tracks = true, WHO([B_part] = B_ONLY, [B_rst] = A_ONLY)},
    {"lease-reset-cd", VER, BUD([B_req] = 2, [B_part] = 1, [B_lease] = 1, [B_rst] = 1, [B_cd] = 1),
     WHO([B_part] = B_ONLY, [B_rst] = A_ONLY, [B_cd] = B_ONLY, [B_req] = B_ONLY)},
    {"lease-tenant", VER, BUD([B_req] = 2, [B_part] = 1, [B_lease] = 1, [B_ten] = 1),
     WHO([B_part] = B_ONLY, [B_ten] = A_ONLY, [B_req] = B_ONLY)},
    {"const", CONST_NAME, BUD([B_req] = 2, [B_upd] = 2, [B_give] = 1), .maxw = 2, .private_ = true,
     WHO([B_give] = A_ONLY, [B_req] = A_ONLY)},
    {"const-cd", CONST_NAME, BUD([B_req] = 2, [B_upd] = 2, [B_cd] = 1, [B_give] = 1), .maxw = 1,
     .private_ = true, WHO([B_cd] = A_ONLY, [B_upd] = A_ONLY)},
    {"const-sleep", CONST_NAME, BUD([B_req] = 2, [B_slp] = 1, [B_real] = 1, [B_give] = 1),
     .maxw = 1, WHO([B_slp] = A_ONLY)},
    {"cut", VER, BUD([B_req] = 2, [B_upd] = 1, [B_cut] = 1), .maxw = 1, WHO([B_upd] = A_ONLY)},
    {"live-update", FP, BUD([B_req] = 1, [B_upd] = 1, [B_part] = 1), .maxw = 1, .live = true,
     WHO([B_upd] = A_ONLY, [B_part] = A_ONLY)},
    {"live-reset", VER, BUD([B_req] = 1, [B_rst] = 2), .live = true, WHO([B_req] = A_ONLY)},
    {"live-part", VER, BUD([B_req] = 1, [B_rst] = 1, [B_part] = 2), .live = true,
     WHO([B_req] = A_ONLY)},
    {"live-tenant", FP, BUD([B_req] = 1, [B_ten] = 1, [B_part] = 1, [B_cd] = 1), .live = true,
     WHO([B_req] = A_ONLY, [B_cd] = A_ONLY, [B_ten] = A_ONLY, [B_part] = A_ONLY)},
    {"live-lease", VER, BUD([B_part] = 1, [B_lease] = 1, [B_pau] = 1, [B_give] = 1), .live = true,
     WHO([B_part] = A_ONLY, [B_pau] = B_ONLY, [B_give] = B_ONLY)},
    {"live-lease-reset", FP, BUD([B_part] = 2, [B_lease] = 1, [B_rst] = 1), .live = true,
     WHO([B_part] = B_ONLY, [B_rst] = A_ONLY)},
    {"live-sleep", FP, BUD([B_req] = 1, [B_slp] = 1, [B_real] = 1, [B_cd] = 1, [B_ce] = 1),
     .maxw = 1, .live = true, .keep = true,
     WHO([B_slp] = A_ONLY, [B_cd] = A_ONLY, [B_ce] = A_ONLY, [B_req] = A_ONLY)},
};

int main(int argc, char **argv)
{
    const char *text = getenv("KVPLANE_STATES");
    limit = text != NULL ? (uint32_t)strtoul(text, NULL, 0) : limit;
    cap_nodes = 1u << 16;
    nodes = malloc(cap_nodes * sizeof *nodes);
    table_mask = (1u << 23) - 1;
    table = malloc((table_mask + 1) * sizeof *table);
    if (nodes == NULL || table == NULL) {
        return 2;
    }
    bool ok = true;
    uint32_t tried = 0;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (size_t n = 0; n < sizeof lenses / sizeof lenses[0] && ok; n++) {
        bool wanted = argc < 2;
        for (int a = 1; a < argc; a++) {
            wanted = wanted || strcmp(argv[a], lenses[n].name) == 0;
        }
        tried += wanted;
        ok = !wanted || explore(&lenses[n]);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("explore: %s lenses=%u states=%llu all=%s took_s=%lld\n", ok ? "ok" : "failed", tried,
           (unsigned long long)explored, complete ? "yes" : "no",
           (long long)(end.tv_sec - begin.tv_sec));
    free(nodes);
    free(table);
    return ok ? 0 : 1;
}
