//! Plans a write from its message, the constraints and the shard key alone, without asking a server.
//!
//! A plan carries its constraints, so that Keyward looks them up once. It depends on the statements, the constraints and the
//! shard key, never on documents. So a driver's retry gets the plan of its first try, and finds the first try's result.

use std::sync::Arc;

use crate::catalog::{Catalog, Protected};
use crate::classify::{Target, Write};
use crate::command::affected_keys::{KeyChange, affects_keys};
use crate::command::batch::BatchCommand;
use crate::command::bulk::BulkWrite;
use crate::command::key_update::KeyUpdate;
use crate::command::plain_upsert::PlainUpsert;
use crate::command::shape::Form;
use crate::command::statement::{Statement, StatementKind};
use crate::constraint::Strategy;
use crate::raw::{Doc, Malformed};
use crate::reply::WriteRefusal;
use crate::route::needs_routing;
use crate::wire::OpMsg;

/// How a write is carried out.
#[derive(Debug)]
pub enum Plan<'m> {
    /// No statement can change a key: Keyward forwards the message unchanged, like a read.
    Forward,
    /// The documents or statements of one command on one protected collection.
    Command(Box<CommandPlan<'m>>),
    /// A `bulkWrite`, whose parts are planned as commands of their own; or the refusal of its shape.
    Bulk(Result<BulkWrite<'m>, WriteRefusal>, Arc<Catalog>),
    /// A `drop` of the protected collection.
    Drop(Arc<Protected>),
    /// A `dropDatabase`.
    DropDatabase(&'m [u8], Arc<Catalog>),
    /// A command that may change a shard key.
    ShardKeyChange,
}

/// One command on one protected collection.
#[derive(Debug)]
pub struct CommandPlan<'m> {
    /// The collection, with its constraints.
    pub protected: Arc<Protected>,
    /// Inserts documents, or carries out statements of this kind.
    pub form: Form,
    /// Whether a driver may have sent it. If not, Keyward first probes whether the server refuses it.
    pub has_driver_shape: bool,
    /// The work.
    pub work: CommandWork<'m>,
}

/// The work that a command on a protected collection asks for.
#[derive(Debug)]
pub enum CommandWork<'m> {
    /// Inserts documents with their reservations.
    Insert(BatchCommand<'m>),
    /// Statements of an `update` or a `delete`, or the single statement of a `findAndModify`.
    Statements(BatchCommand<'m>, StatementKind, Vec<StatementPlan<'m>>),
    /// No work: Keyward refuses the command, unless the server refuses it before.
    Refused(WriteRefusal),
}

/// One statement.
#[derive(Debug)]
pub struct StatementPlan<'m> {
    /// The statement.
    pub statement: Statement<'m>,
    /// How it is carried out.
    pub way: Way<'m>,
}

/// How a statement is carried out.
#[derive(Debug)]
pub enum Way<'m> {
    /// It can't change a key, or the server refuses it: Keyward forwards it unchanged. In a client's transaction it runs there.
    Forward,
    /// The statement states its new keys. Keyward reserves them, forwards the statement, and releases the old keys.
    InPlace(KeyUpdate<'m>),
    /// An upsert that states its new keys, whether it inserts a document or changes one. Keyward finds out which, and carries it out
    /// in place.
    Upsert(PlainUpsert<'m>),
    /// It runs in a transaction with its reservations: the client's own, or one of Keyward's. A statement that changes no key runs there,
    /// too, if it is routed: Keyward then reads its document first.
    InTransaction,
}

impl<'m> Plan<'m> {
    /// The plan for `write`, which `message` asks for, by the constraints of the `catalog` that classified it; `change` is what
    /// [`key_change`] says of it.
    pub fn of(write: &Write<'m>, message: &OpMsg<'m>, change: KeyChange, catalog: &Arc<Catalog>) -> Plan<'m> {
        if change == KeyChange::None {
            return Plan::Forward;
        }
        let protected = |target: &Target<'_>| catalog.protected(target.database, target.collection).cloned();
        let (target, form) = match write {
            Write::Insert(target) => (target, Form::Insert),
            Write::Update(target) => (target, Form::Changes(StatementKind::Update)),
            Write::Delete(target) => (target, Form::Changes(StatementKind::Delete)),
            Write::FindAndModify(target) => (target, Form::Changes(StatementKind::FindAndModify)),
            Write::BulkWrite => return Plan::Bulk(BulkWrite::parse(message), catalog.clone()),
            Write::Drop(target) => return protected(target).map_or(Plan::Forward, Plan::Drop),
            Write::DropDatabase { database } => return Plan::DropDatabase(database, catalog.clone()),
            Write::ShardKeyChange => return Plan::ShardKeyChange,
        };
        // A collection outside the catalog needs no protection.
        let Some(protected) = protected(target) else {
            return Plan::Forward;
        };
        let work = work(form, message, change, &protected).unwrap_or_else(CommandWork::Refused);
        Plan::Command(Box::new(CommandPlan {
            has_driver_shape: form.has_driver_shape(message).unwrap_or(false),
            protected,
            form,
            work,
        }))
    }
}

fn work<'m>(
    form: Form,
    message: &OpMsg<'m>,
    change: KeyChange,
    protected: &Protected,
) -> Result<CommandWork<'m>, WriteRefusal> {
    if protected.is_clustered_by_sort_keys {
        return Err(WriteRefusal::Clustered {
            namespace: protected.namespace.clone(),
        });
    }
    let command = match form.list() {
        Some(list) => BatchCommand::parse(message, list)?,
        None => BatchCommand::single(message.body)?,
    };
    let Form::Changes(kind) = form else {
        return Ok(CommandWork::Insert(command));
    };
    for raw in &command.documents {
        if !kind.can_read_query(*raw).map_err(WriteRefusal::Malformed)? {
            return Err(WriteRefusal::WrongType(kind.query_name()));
        }
    }
    let plans = command.documents.iter().enumerate().map(|(index, raw)| {
        let affects = change
            .of_statement(index)
            .map_or_else(|| affects_keys(kind, *raw, protected), Ok)?;
        StatementPlan::of(Statement::of(kind, command.body, *raw)?, affects, &command, protected)
    });
    let plans: Result<Vec<_>, _> = plans.collect();
    let plans = plans.map_err(WriteRefusal::Malformed)?;
    Ok(CommandWork::Statements(command, kind, plans))
}

impl<'m> StatementPlan<'m> {
    fn of(
        statement: Statement<'m>,
        affects_keys: bool,
        command: &BatchCommand<'m>,
        protected: &Protected,
    ) -> Result<Self, Malformed> {
        let way = if !affects_keys {
            match needs_routing(statement, protected) && !command.is_in_transaction()? {
                true => Way::InTransaction,
                false => Way::Forward,
            }
        } else if command.is_in_transaction()? {
            Way::InTransaction
        } else if command.retry.is_some() && !statement.is_single {
            // The server refuses a retryable statement about many documents.
            Way::Forward
        } else if protected.strategy() == Strategy::Strict {
            // In place, a reservation only lasts for its lease.
            Way::InTransaction
        } else {
            let in_place = match statement.is_upsert {
                true => PlainUpsert::of(statement, protected)?.map(Way::Upsert),
                false => KeyUpdate::of(statement, protected)?.map(Way::InPlace),
            };
            in_place.unwrap_or(Way::InTransaction)
        };
        Ok(StatementPlan { statement, way })
    }
}

/// The statements of the write that may change a key. If none may, Keyward forwards the write unchanged, like a read.
///
/// A driver's retry is treated like its first try: the answer depends on the statement and the constraints, never on documents.
pub fn key_change(write: &Write<'_>, message: &OpMsg<'_>, catalog: &Catalog) -> KeyChange {
    let (target, kind) = match write {
        Write::Update(target) => (target, StatementKind::Update),
        Write::FindAndModify(target) => (target, StatementKind::FindAndModify),
        _ => return KeyChange::Unknown,
    };
    let Some(protected) = catalog.protected(target.database, target.collection) else {
        return KeyChange::Unknown;
    };
    match KeyChange::of(kind, message, &**protected) {
        // No key changes, but Keyward carries the write out all the same, to route it.
        KeyChange::None if protected.routes() && any_needs_routing(kind, message, protected) => KeyChange::Unknown,
        change => change,
    }
}

/// Whether Keyward routes any statement of the command, because it names its document by a key.
fn any_needs_routing(kind: StatementKind, message: &OpMsg<'_>, protected: &Protected) -> bool {
    let needs = |raw: Doc<'_>| Statement::of(kind, message.body, raw).is_ok_and(|one| needs_routing(one, protected));
    let Some(list) = kind.list() else {
        return needs(message.body);
    };
    let Ok(Some(batch)) = message.documents(list) else {
        return false;
    };
    batch
        .iter()
        .is_ok_and(|mut statements| statements.any(|raw| raw.is_ok_and(needs)))
}
