//! The table of commands: by name, how a command can write, and so what is to be checked before it goes on.
//!
//! The names are those of MongoDB 4.4 to 8.0, with their old spellings. A name that isn't here is searched for anything
//! that names a protected or a proxy collection, and refused if something does.

use std::collections::HashSet;
use std::sync::LazyLock;

use bson::spec::ElementType;

use super::command::Command;
use super::target::visit_all;
use super::{Kind, Protection, Refusal, Target, Verdict, Write};
use crate::raw::{Doc, Element, Malformed};

/// How a command can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The handshake: writes nothing, but says who the server is.
    Hello,
    /// Can't change the documents of a collection, nor take a collection away.
    Harmless,
    /// A write command on the collection that its first field names.
    Write(WriteCommand),
    /// Writes to every collection that `nsInfo` lists.
    BulkWrite,
    /// Writes where a `$out` or `$merge` in `pipeline` says.
    Aggregate,
    /// Writes where `out` says.
    MapReduce,
    /// Takes away a whole database.
    DropDatabase,
    /// `create`: harmless, unless it makes the name a view or a time series.
    Create,
    /// Changes a collection's definition, not its documents: for Keyward alone on proxy collections.
    Definition,
    /// The same, but the first field is a whole namespace.
    DefinitionOfWhole,
    /// Replaces or moves documents of the collection that the first field names, or makes `toCollection`.
    Rewrite,
    /// The same for whole namespaces, in the first field and in `to`.
    RewriteOfWhole,
    /// Could write to any collection in ways that can't be checked.
    Anywhere,
}

/// The write commands that the write path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCommand {
    Insert,
    Update,
    Delete,
    FindAndModify,
    Drop,
}

impl Rule {
    /// The rule for the command `name`.
    pub fn of(name: &[u8]) -> Option<Rule> {
        Some(match name {
            b"hello" | b"isMaster" | b"ismaster" => Rule::Hello,
            b"insert" => Rule::Write(WriteCommand::Insert),
            b"update" => Rule::Write(WriteCommand::Update),
            b"delete" => Rule::Write(WriteCommand::Delete),
            b"findAndModify" | b"findandmodify" => Rule::Write(WriteCommand::FindAndModify),
            b"drop" => Rule::Write(WriteCommand::Drop),
            b"bulkWrite" => Rule::BulkWrite,
            b"aggregate" => Rule::Aggregate,
            b"mapReduce" | b"mapreduce" => Rule::MapReduce,
            b"dropDatabase" => Rule::DropDatabase,
            b"create" => Rule::Create,
            b"createIndexes"
            | b"dropIndexes"
            | b"deleteIndexes"
            | b"collMod"
            | b"reIndex"
            | b"createSearchIndexes"
            | b"updateSearchIndex"
            | b"dropSearchIndex" => Rule::Definition,
            b"shardCollection" | b"shardcollection" => Rule::DefinitionOfWhole,
            b"convertToCapped"
            | b"cloneCollectionAsCapped"
            | b"compactStructuredEncryptionData"
            | b"cleanupStructuredEncryptionData" => Rule::Rewrite,
            b"renameCollection" | b"reshardCollection" | b"refineCollectionShardKey" | b"unshardCollection" => {
                Rule::RewriteOfWhole
            }
            b"applyOps"
            | b"doTxn"
            | b"eval"
            | b"$eval"
            | b"clone"
            | b"copydb"
            | b"cloneCollection"
            | b"internalRenameIfOptionsAndIndexesMatch" => Rule::Anywhere,
            name if HARMLESS_NAMES.contains(name) => Rule::Harmless,
            _ => return None,
        })
    }

    /// Applies the rule to a command that it is the rule for.
    pub fn apply<'a>(self, command: &Command<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
        let named = || Target::in_database(command.database, &command.first);
        let refuse_known = |targets: &mut dyn Iterator<Item = Target<'a>>| {
            Target::find(targets, protection).map_or(Verdict::Forward, |(target, kind)| {
                Verdict::Refuse(Refusal::of(command.name, target, kind))
            })
        };
        let refuse_proxy = |targets: &mut dyn Iterator<Item = Target<'a>>| {
            refuse_known(&mut targets.filter(|target| target.kind(protection) == Some(Kind::ProxyCollection)))
        };
        Ok(match self {
            Rule::Hello | Rule::Harmless => Verdict::Forward,
            Rule::Write(write) => write.apply(command, protection),
            Rule::BulkWrite => bulk_write(command, protection)?,
            Rule::Aggregate => aggregate(command, protection)?,
            Rule::MapReduce => match command.message.body.get("out")? {
                Some(out) => output(command, b"mapReduce", &out, protection)?,
                None => Verdict::Forward,
            },
            Rule::DropDatabase if protection.protects_any_in(command.database) => Verdict::Write(Write::DropDatabase {
                database: command.database,
            }),
            Rule::DropDatabase => Verdict::Forward,
            Rule::Create => {
                let body = command.message.body;
                let changes_kind = body.get("viewOn")?.is_some() || body.get("timeseries")?.is_some();
                match changes_kind {
                    true => refuse_known(&mut named()),
                    false => refuse_proxy(&mut named()),
                }
            }
            Rule::Definition => refuse_proxy(&mut named()),
            Rule::DefinitionOfWhole => refuse_proxy(&mut Target::whole(&command.first)),
            Rule::Rewrite => {
                let to = command.message.body.get("toCollection")?;
                let to = to.iter().flat_map(|to| Target::in_database(command.database, to));
                refuse_known(&mut named().chain(to))
            }
            Rule::RewriteOfWhole => {
                let to = command.message.body.get("to")?;
                refuse_known(&mut Target::whole(&command.first).chain(to.iter().flat_map(Target::whole)))
            }
            Rule::Anywhere => Verdict::Refuse(Refusal::Anywhere {
                command: String::from_utf8_lossy(command.name).into_owned(),
            }),
        })
    }
}

impl WriteCommand {
    fn apply<'a>(self, command: &Command<'a>, protection: &impl Protection) -> Verdict<'a> {
        if command.first.kind == ElementType::Binary {
            return Verdict::Refuse(Refusal::Uuid {
                command: String::from_utf8_lossy(command.name).into_owned(),
            });
        }
        let targets = Target::in_database(command.database, &command.first);
        match Target::find(targets, protection) {
            None => Verdict::Forward,
            Some((target, Kind::ProxyCollection)) => {
                Verdict::Refuse(Refusal::of(command.name, target, Kind::ProxyCollection))
            }
            // The write path composes commands of its own: it gets only what has one reading.
            Some((target, Kind::Protected)) if command.first.as_string_bytes() != Some(target.collection) => {
                Verdict::Refuse(Refusal::of(command.name, target, Kind::Protected))
            }
            Some((target, Kind::Protected)) => Verdict::Write(match self {
                WriteCommand::Insert => Write::Insert(target),
                WriteCommand::Update => Write::Update(target),
                WriteCommand::Delete => Write::Delete(target),
                WriteCommand::FindAndModify => Write::FindAndModify(target),
                WriteCommand::Drop => Write::Drop(target),
            }),
        }
    }
}

fn bulk_write<'a>(command: &Command<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let mut verdict = Verdict::Forward;
    let Some(batch) = command.message.documents("nsInfo")? else {
        return Ok(verdict);
    };
    for entry in batch.iter()?.filter_map(Result::ok) {
        for field in entry.elements() {
            let field = field?;
            let targets = (field.name == b"ns")
                .then(|| Target::whole(&field))
                .into_iter()
                .flatten();
            match Target::find(targets, protection) {
                Some((target, Kind::ProxyCollection)) => {
                    return Ok(Verdict::Refuse(Refusal::of(
                        command.name,
                        target,
                        Kind::ProxyCollection,
                    )));
                }
                Some((_, Kind::Protected)) => verdict = Verdict::Write(Write::BulkWrite),
                None => {}
            }
        }
    }
    Ok(verdict)
}

fn aggregate<'a>(command: &Command<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let Some(pipeline) = command.message.documents("pipeline")? else {
        return Ok(Verdict::Forward);
    };
    let mut outputs: Vec<Element<'a>> = Vec::new();
    for stage in pipeline.iter()?.filter_map(Result::ok) {
        visit_all(stage, |element| {
            if matches!(element.name, b"$out" | b"$merge") {
                outputs.push(*element);
            }
        })?;
    }
    for out in outputs {
        let verdict = output(command, out.name, &out, protection)?;
        if verdict != Verdict::Forward {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Forward)
}

/// Refuses `stage` if what its value `out` names, in any reading, is protected or a proxy collection.
fn output<'a>(
    command: &Command<'a>,
    stage: &[u8],
    out: &Element<'a>,
    protection: &impl Protection,
) -> Result<Verdict<'a>, Malformed> {
    let mut collections = vec![*out];
    let mut databases = vec![command.database];
    if let Some(specification) = out.as_document_or_array()? {
        visit_all(specification, |element| match element.name {
            b"db" => databases.extend(element.as_string_bytes()),
            b"coll" | b"into" | b"replace" | b"merge" | b"reduce" | b"normal" => collections.push(*element),
            _ => {}
        })?;
    }
    let targets = databases.iter().flat_map(|database| {
        collections
            .iter()
            .flat_map(move |collection| Target::in_database(database, collection))
    });
    Ok(
        Target::find(targets, protection).map_or(Verdict::Forward, |(target, kind)| {
            Verdict::Refuse(Refusal::of(stage, target, kind))
        }),
    )
}

/// A command that isn't in the table goes on only if nothing in it names a protected or a proxy collection.
pub fn unknown<'a>(command: &Command<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let mut found = None;
    let mut search = |document: Doc<'a>| {
        visit_all(document, |element| {
            let targets = Target::in_database(command.database, element).chain(Target::whole(element));
            found = found.or_else(|| Target::find(targets, protection));
        })
    };
    search(command.message.body)?;
    for sequence in command.message.sequences() {
        for document in crate::wire::Documents::concatenated(sequence.documents).filter_map(Result::ok) {
            search(document)?;
        }
    }
    Ok(found.map_or(Verdict::Forward, |(target, kind)| {
        Verdict::Refuse(Refusal::of(command.name, target, kind))
    }))
}

static HARMLESS_NAMES: LazyLock<HashSet<&[u8]>> =
    LazyLock::new(|| HARMLESS.iter().map(|name| name.as_bytes()).collect());

/// Commands that can't change the documents of a collection, nor take a collection away.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    // reading
    "find", "getMore", "killCursors", "count", "distinct", "explain", "listCollections", "listIndexes",
    "listDatabases", "listSearchIndexes", "dbStats", "dbstats", "collStats", "collstats", "dataSize", "datasize",
    "dbHash", "dbhash", "validate", "validateDBMetadata", "checkMetadataConsistency", "parallelCollectionScan",
    "geoSearch", "geoNear", "group", "splitVector", "medianKey", "checkShardingIndex", "planCacheListFilters",
    // sessions, transactions, authentication
    "commitTransaction", "abortTransaction", "startSession", "endSessions", "refreshSessions", "killSessions",
    "killAllSessions", "killAllSessionsByPattern", "saslStart", "saslContinue", "authenticate", "logout",
    "getnonce", "getLastError", "getlasterror", "getPrevError", "resetError", "connectionStatus",
    // diagnosis
    "ping", "buildInfo", "buildinfo", "hostInfo", "hostinfo", "serverStatus", "getCmdLineOpts", "getLog",
    "getParameter", "setParameter", "whatsmyuri", "whatsmysni", "features", "availableQueryOptions", "listCommands",
    "currentOp", "killOp", "top", "profile", "lockInfo", "isdbgrid", "isDbGrid", "connPoolStats", "shardConnPoolStats",
    "connPoolSync", "getDiagnosticData", "getFreeMonitoringStatus", "setFreeMonitoring", "logApplicationMessage",
    "logRotate", "rotateCertificates", "driverOIDTest", "sleep", "configureFailPoint", "waitForFailPoint",
    "getDefaultRWConcern", "setDefaultRWConcern", "getAuditConfig", "setAuditConfig", "_isSelf", "_hashBSONElement",
    "queryStats", "analyze", "configureQueryAnalyzer", "setQuerySettings", "removeQuerySettings",
    // users and roles
    "createUser", "updateUser", "dropUser", "dropAllUsersFromDatabase", "grantRolesToUser", "revokeRolesFromUser",
    "usersInfo", "createRole", "updateRole", "dropRole", "dropAllRolesFromDatabase", "grantRolesToRole",
    "revokeRolesFromRole", "grantPrivilegesToRole", "revokePrivilegesFromRole", "rolesInfo", "invalidateUserCache",
    "_mergeAuthzCollections", "_getUserCacheGeneration",
    // plans and storage
    "planCacheClear", "planCacheClearFilters", "planCacheSetFilter", "filemd5", "compact", "autoCompact", "fsync",
    "fsyncUnlock", "shutdown", "setUserWriteBlockMode", "setIndexCommitQuorum", "setFeatureCompatibilityVersion",
    "setProfilingFilterGlobally", "setClusterParameter", "getClusterParameter",
    // sharding: where documents lie, not what they are
    "enableSharding", "enablesharding", "listShards", "addShard", "addshard", "addShardToZone", "removeShard",
    "removeshard", "removeShardFromZone", "updateZoneKeyRange", "movePrimary", "moveprimary", "moveCollection",
    "abortMoveCollection", "abortReshardCollection", "abortUnshardCollection", "commitReshardCollection",
    "cleanupReshardCollection", "split", "moveChunk", "movechunk", "moveRange", "mergeChunks", "mergeAllChunksOnShard",
    "clearJumboFlag", "balancerStart", "balancerStop", "balancerStatus", "balancerCollectionStatus",
    "configureCollectionBalancing", "setAllowMigrations", "cleanupOrphaned", "flushRouterConfig", "getShardMap",
    "getShardVersion", "shardingState", "refreshLogicalSessionCacheNow", "netstat", "repairShardedCollectionChunksHistory",
    "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer", "resetPlacementHistory",
    // replication
    "replSetGetStatus", "replSetGetConfig", "replSetStepDown", "replSetFreeze", "replSetMaintenance",
    "replSetSyncFrom", "replSetReconfig", "replSetInitiate", "replSetGetRBID", "replSetAbortPrimaryCatchUp",
    "replSetResizeOplog", "appendOplogNote",
];
