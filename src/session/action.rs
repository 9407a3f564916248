//! Defines what follows once a message has been judged, and makes the replies that Keyward itself gives.

use super::End;
use super::replies::PendingReply;
use super::routed::PinnedRead;
use crate::raw::Doc;
use crate::server::cursor;
use crate::traces::note_outcome;
use crate::wire::{Envelope, Rejection, Treatment};
use crate::write;

/// The action once the message has been judged, and served if it must be.
pub(super) enum Action {
    /// The client gets this message.
    Answer(Vec<u8>),
    /// The client gets this message, and reads a cursor.
    AnswerWithCursor(Vec<u8>),
    /// The client gets nothing.
    Silence,
    /// Keyward forwards the message unchanged, and this reply is pending.
    Forward(Option<PendingReply>),
    /// Keyward judges the message anew once no reply is pending.
    JudgeAnew,
    /// Keyward carries out the `aggregate` with `$merge` in this whole message, and then answers.
    Merge(Vec<u8>, ReplyTo),
    /// Keyward sends the read to the owner's shard, and then answers or forwards the message, whose reply is then pending.
    Read(Box<PinnedRead>, ReplyTo, Option<PendingReply>),
}

/// The message that Keyward replies to, and the number of the reply.
#[derive(Clone, Copy)]
pub(super) struct ReplyTo {
    pub(super) envelope: Envelope,
    pub(super) reply_id: i32,
}

impl ReplyTo {
    /// Answers with `body`, if the client wants a reply.
    pub(super) fn answer(self, body: &[u8]) -> Result<Action, End> {
        note_outcome(body);
        if !self.envelope.wants_reply() {
            return Ok(Action::Silence);
        }
        let reply = self.envelope.reply(body, self.reply_id).map_err(Rejection::from)?;
        Ok(Action::Answer(reply))
    }

    /// Answers with `body`, which may leave a cursor open.
    pub(super) fn answer_with_cursor(self, body: &[u8]) -> Result<Action, End> {
        let more = Doc::new(body)
            .and_then(cursor::more)
            .map_err(write::ForwardError::from)?;
        self.answer_leaving(more.is_some(), body)
    }

    /// Answers with `body`, which leaves a cursor open if `leaves_cursor`.
    pub(super) fn answer_leaving(self, leaves_cursor: bool, body: &[u8]) -> Result<Action, End> {
        Ok(match (self.answer(body)?, leaves_cursor) {
            (Action::Answer(reply), true) => Action::AnswerWithCursor(reply),
            (action, _) => action,
        })
    }

    /// Treats a message that is turned down as the server does.
    pub(super) fn turn_down(self, rejection: &Rejection) -> Result<Action, End> {
        match rejection.treatment() {
            Treatment::Close => Err(rejection.clone().into()),
            Treatment::Answer(error) if self.envelope.wants_reply() => {
                let reply = self.envelope.error(rejection, &error, self.reply_id);
                Ok(Action::Answer(reply))
            }
            Treatment::Answer(_) | Treatment::Ignore => Ok(Action::Silence),
        }
    }
}
