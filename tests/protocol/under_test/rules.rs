//! What is played by: the mode, the assumption about time, and the guard that is taken away on purpose.

/// How a document and its reservations are made one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Compensating,
    Strict,
}

/// A guard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// How old a reservation is, is reckoned from cluster times.
    AgeByClusterTime,
    /// A cluster time that one shard has told counts as passed on all.
    TimeOfOneShard,
    /// A takeover replaces whatever reservation there is.
    TakeoverWithoutToken,
    /// A takeover compares the token, but not when the reservation was written.
    TakeoverWithoutAt,
    /// The look before a takeover may be answered by a deposed primary.
    LookNotLinearizable,
    /// A reservation whose lease is over is taken over without looking for its owner.
    LookWithoutOwner,
    /// Old keys are given up with the write instead of after it.
    ReleaseBeforeWrite,
    /// A release deletes whatever reservation there is.
    ReleaseWithoutToken,
    /// A release that the server takes long for is sent again while the first may still come.
    ReleaseLeftBehind,
    /// A release that isn't answered counts as done.
    ReleaseBelieved,
    /// What was seen is deleted without comparing what is there now.
    DeleteWithoutToken,
    /// A reservation counts before a majority has it.
    WithoutMajority,
    /// A write counts, and old keys are given up, before a majority has it.
    AnswerBeforeMajority,
    /// What a first try did counts for its retry before a majority has it.
    AskBeforeMajority,
    /// A strict insert sees its reservations as of a moment before its transaction's snapshot.
    LookBeforeSnapshot,
    /// A strict insert doesn't look at its reservations again: its snapshot is later than they are.
    WithoutLook,
    /// A strict takeover looks for the owner, and leaves no placeholder.
    WithoutPlaceholder,
    /// While the constraint is being built, an insert doesn't look whether its document exists without a reservation.
    InsertWithoutCheck,
}

/// The rules of one run.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub mode: Mode,
    /// Whether the server ends every forwarded write before the lease of its keys is over.
    pub lease_holds: bool,
    /// Whether the constraint is being built: the documents at the beginning have no reservations.
    pub is_being_built: bool,
    pub broken: Option<Broken>,
}

impl Rules {
    /// As the modes promise it: compensating rests on the lease, strict mode does without.
    pub const fn of(mode: Mode) -> Rules {
        Rules {
            mode,
            lease_holds: matches!(mode, Mode::Compensating),
            is_being_built: false,
            broken: None,
        }
    }

    pub fn without(self, guard: Broken) -> Rules {
        Rules {
            broken: Some(guard),
            ..self
        }
    }

    pub fn without_the_lease(self) -> Rules {
        Rules {
            lease_holds: false,
            ..self
        }
    }

    /// Whether an insert checks that its document doesn't exist without reservations.
    pub fn inserts_check(&self) -> bool {
        self.is_being_built && !self.is_strict() && !self.lacks(Broken::InsertWithoutCheck)
    }

    pub fn is_strict(&self) -> bool {
        self.mode == Mode::Strict
    }

    pub fn lacks(&self, guard: Broken) -> bool {
        self.broken == Some(guard)
    }
}
