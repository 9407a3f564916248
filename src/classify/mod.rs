//! Classifies a parsed request: forward it, serve it as a write, or refuse it.
//!
//! Classification reads only the command's name, `$db` and the namespaces that the command can write to, byte for byte as the
//! server does. It fails closed. Keyward refuses a command that names a protected collection unless the command is known to be
//! harmless. It also refuses a command that two readers could read differently. Keyward forwards commands that the server
//! itself refuses, so that the client gets the server's own error.

mod check;
mod command;
mod pipeline;
mod refusal;
mod removal;
mod rule;
mod target;

pub use refusal::{CommandRefusal, EncryptedField, OtherCollation};
pub use removal::ConstraintRemoval;
pub use target::{Target, TargetKind, plain_name};

use crate::current_op::OperationCommand;
use crate::encrypted_fields::EncryptedFields;
use crate::hiding::Listing;
use crate::indexes::IndexCommand;
use crate::raw::{Element, Malformed};
use crate::wire::{Message, OpMsg};
use command::CommandHead;
use rule::Rule;

/// The lookups that classification needs in the catalog of constraints. Names are the bytes on the wire.
pub trait Protection {
    /// Whether a constraint holds on this collection.
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool;
    /// The same, asked for a command that writes nothing there.
    fn has_constraints(&self, database: &[u8], collection: &[u8]) -> bool;
    /// How the constraints on this collection are ended.
    fn removal(&self, database: &[u8], collection: &[u8]) -> ConstraintRemoval;
    /// The name of a constraint in strict mode on this collection, if there is one.
    fn strict_constraint(&self, database: &[u8], collection: &[u8]) -> Option<String>;
    /// Whether this is the register, a proxy collection, or a name reserved for one.
    fn is_keywards_own(&self, database: &[u8], collection: &[u8]) -> bool;
    /// The constraint on this collection that doesn't fit this value of `collation`; `None` if all fit.
    fn other_collation(
        &self,
        database: &[u8],
        collection: &[u8],
        collation: Option<&Element<'_>>,
    ) -> Option<OtherCollation>;
    /// The constraint on this collection that reads one of these encrypted fields; `None` if none does.
    fn encrypted(&self, database: &[u8], collection: &[u8], fields: &EncryptedFields) -> Option<EncryptedField>;
}

/// How a client that begins a connection, or monitors it, takes the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// As one server.
    Direct,
    /// As a load balancer (`loadBalanced=true`): each connection may lead to another Keyward.
    LoadBalanced,
}

/// The decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Keyward forwards the bytes unchanged.
    Forward,
    /// Keyward forwards the bytes unchanged and edits the reply.
    Hello(Handshake),
    /// The write path serves or refuses it.
    Write(Write<'a>),
    /// It lists or watches: Keyward hides its own collections.
    List(Listing),
    /// A command about indexes, which Keyward serves.
    Index(IndexCommand<'a>),
    /// A command that lists or ends operations: the builds of clients' constraints are among them.
    Operation(OperationCommand),
    /// An `aggregate` that ends with `$merge` into this protected collection: Keyward carries it out as writes.
    Merge(Target<'a>),
    /// The client gets this error.
    Refuse(CommandRefusal),
}

/// A command on protected data, for the write path to serve or refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write<'a> {
    /// `insert` into a protected collection.
    Insert(Target<'a>),
    /// `update` of a protected collection.
    Update(Target<'a>),
    /// `delete` from a protected collection.
    Delete(Target<'a>),
    /// `findAndModify` on a protected collection, in either spelling.
    FindAndModify(Target<'a>),
    /// `bulkWrite` that lists at least one protected collection and no proxy collection in `nsInfo`.
    BulkWrite,
    /// `drop` of a protected collection.
    Drop(Target<'a>),
    /// A command that may give a protected collection another shard key, and changes nothing else.
    ShardKeyChange,
    /// `dropDatabase` of a database with a protected collection.
    DropDatabase {
        /// The database.
        database: &'a [u8],
    },
}

/// Decides what to do with `message`.
///
/// # Errors
/// [`Malformed`] if a part that must be read isn't BSON; the server would report the same.
pub fn classify<'a>(message: &Message<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    match message {
        Message::Query(query) => match query.name {
            "hello" | "isMaster" | "ismaster" => hello(query.command),
            // Old servers authenticate in this way.
            _ => authentication(query.command),
        },
        Message::Msg(message) => match CommandHead::read(message)? {
            None => Ok(Verdict::Forward),
            Some(command) if command.has_two_databases => Ok(Verdict::Refuse(CommandRefusal::TwoDatabases)),
            Some(command) => match Rule::of(command.name) {
                Some(Rule::Hello) => hello(message.body),
                Some(Rule::Authenticate) => authentication(message.body),
                Some(Rule::Harmless) => Ok(Verdict::Forward),
                Some(rule) => check::known(rule, &command, protection),
                None => check::unknown(&command, protection),
            },
        },
    }
}

/// The write of documents that `message` is, whether or not its collection is protected; none for any other command.
///
/// # Errors
/// As for [`classify`].
pub fn write_of<'a>(message: &OpMsg<'a>) -> Result<Option<Write<'a>>, Malformed> {
    let Some(command) = CommandHead::read(message)? else {
        return Ok(None);
    };
    Ok(match Rule::of(command.name) {
        Some(Rule::Write(write)) => {
            let mut readings = Target::in_database(command.database, &command.first);
            let target = readings.next();
            // If its name has several readings, the server refuses it.
            target.filter(|_| readings.next().is_none()).map(write)
        }
        Some(Rule::BulkWrite) => Some(Write::BulkWrite),
        _ => None,
    })
}

/// Whether the table of commands contains this name.
pub fn is_known_command(name: &[u8]) -> bool {
    Rule::of(name).is_some()
}

/// Handles the handshake.
fn hello(body: crate::raw::Doc<'_>) -> Result<Verdict<'_>, Malformed> {
    let is_refused = body.any(|field| match field.name {
        b"speculativeAuthenticate" => field.as_document_or_array()?.map_or(Ok(false), is_x509),
        _ => Ok(false),
    })?;
    Ok(match is_refused {
        true => Verdict::Refuse(CommandRefusal::X509),
        false if body.is_set("loadBalanced")? => Verdict::Hello(Handshake::LoadBalanced),
        false => Verdict::Hello(Handshake::Direct),
    })
}

/// Handles authentication. For the server, a connection's certificate is Keyward's: a client that logs in with it would get
/// Keyward's rights.
fn authentication(body: crate::raw::Doc<'_>) -> Result<Verdict<'_>, Malformed> {
    match is_x509(body)? {
        true => Ok(Verdict::Refuse(CommandRefusal::X509)),
        false => Ok(Verdict::Forward),
    }
}

fn is_x509(body: crate::raw::Doc<'_>) -> Result<bool, Malformed> {
    // Old servers read it up to the first zero byte.
    let is_it = |text: &[u8]| text.split(|byte| *byte == 0).next() == Some(b"MONGODB-X509");
    body.any(|field| Ok(field.name == b"mechanism" && field.as_string_bytes().is_some_and(is_it)))
}

#[cfg(test)]
mod tests;
