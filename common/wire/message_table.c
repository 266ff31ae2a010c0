#include "wire/message_table.h"

#include <stddef.h>

#define BODY(name) SHOAL__ENVELOPE__BODY_##name

enum {
    COORDINATOR = 1 << SHOAL__ROLE__COORDINATOR,
    SERVER = 1 << SHOAL__ROLE__SERVER,
    WORKER = 1 << SHOAL__ROLE__WORKER,
    OPERATOR = 1 << SHOAL__ROLE__OPERATOR,
    READER = 1 << SHOAL__ROLE__READER,
    MEMBER = SERVER | WORKER,
    SERVING = COORDINATOR | SERVER,
    ANYONE = SERVING | WORKER | OPERATOR | READER
};
/* Elements of f64 frames. */
enum { F64 = 8 };

#define ROW(kind) .type = SHOAL__TYPE__##kind, .name = #kind

/* Indexed by type. */
static const struct message_row rows[] = {
    [SHOAL__TYPE__JOIN] = {ROW(JOIN), .senders = MEMBER, .body = BODY(JOIN)},
    [SHOAL__TYPE__JOINED] = {ROW(JOINED), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(JOINED)},
    [SHOAL__TYPE__HEARTBEAT] = {ROW(HEARTBEAT), .senders = ANYONE, .reply = MESSAGE_EITHER},
    [SHOAL__TYPE__LEAVE] = {ROW(LEAVE), .senders = MEMBER},
    [SHOAL__TYPE__AWAIT] = {ROW(AWAIT), .senders = MEMBER},
    [SHOAL__TYPE__JOB] = {ROW(JOB), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(JOB_BEGIN)},
    [SHOAL__TYPE__START] = {ROW(START), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(START),
                            .frames_max = 1, .element_bytes = 4},
    [SHOAL__TYPE__VERDICT] = {ROW(VERDICT), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(VERDICT),
                              .frames_max = 1, .element_bytes = 4},
    [SHOAL__TYPE__SNAPSHOT] = {ROW(SNAPSHOT), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(SNAPSHOT)},
    [SHOAL__TYPE__END] = {ROW(END), .senders = SERVING, .reply = MESSAGE_REPLY},
    [SHOAL__TYPE__REGISTER] = {ROW(REGISTER), .senders = WORKER, .body = BODY(REGISTER_)},
    [SHOAL__TYPE__READY] = {ROW(READY), .senders = SERVER},
    [SHOAL__TYPE__PREPARED] = {ROW(PREPARED), .senders = MEMBER, .body = BODY(PREPARED), .frames_max = 2,
                               .element_bytes = F64},
    [SHOAL__TYPE__TRUST] = {ROW(TRUST), .senders = SERVER, .body = BODY(PREPARED), .frames_min = 1, .frames_max = 1,
                            .element_bytes = F64},
    [SHOAL__TYPE__RATIOS] = {ROW(RATIOS), .senders = SERVING, .reply = MESSAGE_REPLY, .frames_min = 1, .frames_max = 1,
                             .element_bytes = F64},
    [SHOAL__TYPE__REPORT] = {ROW(REPORT), .senders = WORKER, .body = BODY(REPORT), .frames_max = 1,
                             .element_bytes = F64},
    [SHOAL__TYPE__GATHER] = {ROW(GATHER), .senders = WORKER, .body = BODY(GATHER), .frames_min = 1,
                             .frames_max = 1, .element_bytes = F64},
    [SHOAL__TYPE__GATHERED] = {ROW(GATHERED), .senders = SERVING, .reply = MESSAGE_REPLY, .body = BODY(GATHER),
                               .body_optional = 1, .frames_min = 1, .frames_max = 1, .element_bytes = F64},
    [SHOAL__TYPE__EVALUATED] = {ROW(EVALUATED), .senders = WORKER, .body = BODY(EVALUATED), .frames_min = 1,
                                .frames_max = 1, .element_bytes = F64},
    [SHOAL__TYPE__EVALUATION] = {ROW(EVALUATION), .senders = SERVING, .reply = MESSAGE_REPLY,
                                 .body = BODY(EVALUATION)},
    [SHOAL__TYPE__SNAPSHOT_DONE] = {ROW(SNAPSHOT_DONE), .senders = MEMBER, .body = BODY(SNAPSHOT)},
    [SHOAL__TYPE__SUMMARY] = {ROW(SUMMARY), .senders = MEMBER, .body = BODY(SUMMARY), .frames_max = 1},
    [SHOAL__TYPE__HELLO] = {ROW(HELLO), .senders = WORKER},
    [SHOAL__TYPE__WELCOME] = {ROW(WELCOME), .senders = SERVING, .reply = MESSAGE_REPLY},
    [SHOAL__TYPE__INIT] = {ROW(INIT), .senders = WORKER, .body = BODY(PUSH), .body_optional = 1, .frames_min = 1,
                           .frames_max = 1, .ranged = 1},
    [SHOAL__TYPE__PUSH] = {ROW(PUSH), .senders = WORKER, .body = BODY(PUSH), .body_optional = 1, .frames_min = 1,
                           .frames_max = 1, .ranged = 1},
    [SHOAL__TYPE__PULL] = {ROW(PULL), .senders = WORKER, .ranged = 1},
    [SHOAL__TYPE__VALUES] = {ROW(VALUES), .senders = SERVING, .reply = MESSAGE_REPLY, .frames_min = 1,
                             .frames_max = 1},
    [SHOAL__TYPE__FETCH] = {ROW(FETCH), .senders = SERVER, .body = BODY(FETCH)},
    [SHOAL__TYPE__LOCAL] = {ROW(LOCAL), .senders = WORKER | SERVING, .reply = MESSAGE_EITHER, .body = BODY(LOCAL)},
    [SHOAL__TYPE__ACK] = {ROW(ACK), .senders = SERVING, .reply = MESSAGE_REPLY},
    [SHOAL__TYPE__SUBMIT] = {ROW(SUBMIT), .senders = OPERATOR, .body = BODY(SUBMIT)},
    [SHOAL__TYPE__STATUS] = {ROW(STATUS), .senders = OPERATOR | READER | SERVING, .reply = MESSAGE_EITHER,
                             .body = BODY(STATUS_REPORT), .body_optional = 1},
    [SHOAL__TYPE__STOP] = {ROW(STOP), .senders = OPERATOR},
    [SHOAL__TYPE__COLLECTIVE] = {ROW(COLLECTIVE), .senders = WORKER, .body = BODY(COLLECTIVE), .frames_max = 1},
    [SHOAL__TYPE__LAST] = {ROW(LAST), .senders = SERVING, .reply = MESSAGE_REPLY},
    [SHOAL__TYPE__REPORT_DEATH] = {ROW(REPORT_DEATH), .senders = OPERATOR, .body = BODY(DEATH)},
};

const struct message_row *message_row_of(Shoal__Type type)
{
    int index = (int)type;
    if (index <= 0 || (size_t)index >= sizeof rows / sizeof rows[0] || !rows[index].name)
        return NULL;
    return &rows[index];
}

unsigned message_dtype_bytes(Shoal__Dtype dtype)
{
    switch ((int)dtype) {
    case SHOAL__DTYPE__F32:
        return 4;
    case SHOAL__DTYPE__BF16:
    case SHOAL__DTYPE__F16:
        return 2;
    case SHOAL__DTYPE__F64:
        return 8;
    default:
        return 0;
    }
}
