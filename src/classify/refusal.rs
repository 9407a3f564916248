//! Lists the requests that Keyward refuses before it carries out any part, and their error texts.
//!
//! [`crate::reply::WriteRefusal`] lists the writes that Keyward began to plan or carry out and then refuses.
//!
//! A text about a protected collection names the collection and a way out. Codes are MongoDB's, chosen so that drivers don't
//! retry.

use super::{ConstraintRemoval, Protection, Target, TargetKind};
use crate::server::code;
use crate::wire::ServerError;

/// A protected collection must not get another default collation than it had when its constraints were prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherCollation {
    /// The name of a constraint that depends on the collation.
    pub constraint: String,
    /// The collation that the collection had, in words.
    pub had: String,
    /// How the constraints on the collection are ended: each of them compares values or `_id`s under that collation.
    pub removal: ConstraintRemoval,
}

/// A constraint reads a field that Queryable Encryption encrypts, so that equal values can't be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedField {
    /// The constraint's name.
    pub constraint: String,
    /// The encrypted field: one of the constraint's, or a field above or below one of those.
    pub field: String,
    /// How the constraint is ended.
    pub removal: ConstraintRemoval,
}

/// Why Keyward refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// The command would write to a protected collection in a way that Keyward can't check.
    #[error(
        "{command} can't be used on {namespace}, because Keyward keeps unique constraints on it and can't check what \
         this command writes; {}",
        ways_out(command, removal)
    )]
    Unprotectable {
        /// The command or pipeline stage.
        command: String,
        /// The protected collection.
        namespace: String,
        /// How its constraints are ended.
        removal: ConstraintRemoval,
    },
    /// The command would change a collection of Keyward's own: a proxy collection, or the register.
    #[error(
        "{command} can't be used on {namespace}, because this collection is Keyward's own; clients may only read it"
    )]
    KeywardsOwn {
        /// The command or pipeline stage.
        command: String,
        /// The collection.
        namespace: String,
    },
    /// The command could write to any collection.
    #[error(
        "{command} isn't served through Keyward, because it could write past the unique constraints; use insert, \
         update and delete commands"
    )]
    Anywhere {
        /// The command.
        command: String,
    },
    /// A command without a rule could write to any of very many collections.
    #[error(
        "more than {max} texts of {command} could name a collection that it writes to, so Keyward can't tell which it is; send it \
         to mongos, past Keyward"
    )]
    TooManyTexts {
        /// The command.
        command: String,
        /// The most texts that are checked.
        max: usize,
    },
    /// The output of a pipeline could go to any of very many collections.
    #[error(
        "fields of {stage} could name more than {max} collections that it writes to, so Keyward can't tell which it is; give it one \
         database and one collection"
    )]
    TooManyTargets {
        /// The pipeline stage, or `mapReduce`.
        stage: String,
        /// The most collections that are checked.
        max: usize,
    },
    /// A protected collection would be created with another default collation than it had.
    #[error(
        "create can't give {namespace} this default collation through Keyward, because unique constraint {constraint} on it \
         counts on the one that was there before, {had}; create it with that one, or {removal} first",
        constraint = other.constraint, had = other.had, removal = other.removal
    )]
    Collation {
        /// The protected collection.
        namespace: String,
        /// The former collation, and the constraint that depends on it.
        other: OtherCollation,
    },
    /// A protected collection would be created clustered and with a default collation.
    #[error(
        "create can't make {namespace} clustered and give it a default collation through Keyward: with both, the server misses documents \
         when it looks text _ids up byte by byte, as Keyward does; leave out one of the two, or {removal} first"
    )]
    Clustered {
        /// The protected collection.
        namespace: String,
        /// How its constraints are ended.
        removal: ConstraintRemoval,
    },
    /// A collection with constraints in strict mode would be resharded.
    #[error(
        "reshardCollection can't be used on {namespace} through Keyward: unique constraint {constraint} on it is strict, and \
         its reservations name the places of documents by the present shard key. Take the constraint out of Keyward's \
         configuration first, or change its strategy to compensating"
    )]
    StrictReshard {
        /// The protected collection.
        namespace: String,
        /// The name of a constraint on it.
        constraint: String,
    },
    /// A field that a constraint reads would be encrypted.
    #[error(
        "{command} can't encrypt field {field} of {namespace} through Keyward, because unique constraint {constraint} on it \
         reads that field, and encrypted values can't be compared; leave the field unencrypted, or {removal} first",
        constraint = encrypted.constraint, field = encrypted.field, removal = encrypted.removal
    )]
    Encrypted {
        /// The command.
        command: String,
        /// The protected collection.
        namespace: String,
        /// The field, and the constraint that reads it.
        encrypted: EncryptedField,
    },
    /// The command gives the collection to write to by its UUID.
    #[error("{command} must name its collection when it is sent through Keyward, not give its UUID")]
    Uuid {
        /// The command.
        command: String,
    },
    /// An `aggregate` would write only during a `getMore`.
    #[error(
        "aggregate with {stage} can't be used through Keyward with cursor.batchSize 0, because the server would write only \
         during a getMore, when other constraints may hold; leave out batchSize"
    )]
    WritesLater {
        /// The stage that writes.
        stage: String,
    },
    /// `$db` occurs twice in the command.
    #[error("BSON field '$db' is a duplicate field")]
    TwoDatabases,
    /// The client would log in with the certificate of a TLS connection that isn't its own.
    #[error(
        "MONGODB-X509 can't be used through Keyward: the server sees Keyward's certificate and would log in Keyward's user; \
         use SCRAM"
    )]
    X509,
}

impl CommandRefusal {
    /// `command` on a target that the catalog knows.
    pub fn of(command: &[u8], target: Target<'_>, kind: TargetKind, protection: &impl Protection) -> Self {
        let command = String::from_utf8_lossy(command).into_owned();
        let namespace = target.display();
        match kind {
            TargetKind::Protected => CommandRefusal::Unprotectable {
                command,
                namespace,
                removal: protection.removal(target.database, target.collection),
            },
            TargetKind::KeywardsOwn => CommandRefusal::KeywardsOwn { command, namespace },
        }
    }

    /// The error for the client.
    pub fn error(&self) -> ServerError {
        let code = match self {
            CommandRefusal::TwoDatabases => code::DUPLICATE_FIELD,
            // Not IllegalOperation: for a write, the Node driver takes it as "no retryable writes" in the deployment, and
            // replaces the message.
            _ => code::COMMAND_NOT_SUPPORTED,
        };
        ServerError::new(code, self.to_string())
    }
}

/// The commands that do the same on a protected collection, if there are any, or else the end of its constraints.
fn ways_out(command: &str, removal: &ConstraintRemoval) -> String {
    let instead = match command {
        "$out" => "use $merge, after a delete of the documents that are to go, or ",
        "$merge" => "put $merge at the end of the pipeline, or use insert, update and delete commands, or ",
        "mapReduce" => "use aggregate with $merge, or ",
        "renameCollection" => {
            "copy the documents with $merge into the collection with the new name and drop the other one, or "
        }
        "create"
        | "shardCollection"
        | "shardcollection"
        | "unshardCollection"
        | "moveCollection"
        | "convertToCapped"
        | "cloneCollectionAsCapped"
        | "emptycapped" => "",
        _ => "use insert, update and delete commands, or ",
    };
    format!("{instead}{removal} first")
}
