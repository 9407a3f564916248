//! Lists for each command how it can write, and so what Keyward must check before it forwards the command.
//!
//! The names are those of MongoDB 4.4 to 8.0, with their old spellings. [`check`](super::check) makes the checks, also for
//! names that aren't in the table.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::{Target, Write};
use crate::hiding::Listing;

/// How a command can write.
#[derive(Debug, Clone, Copy)]
pub enum Rule<'a> {
    /// The handshake: it writes nothing. Its reply describes the server.
    Hello,
    /// Gives the connection another user, or tries to; writes nothing.
    Authenticate,
    /// Can't change the documents of a collection, and can't remove a collection.
    Harmless,
    /// A write command on the collection that its first field names.
    Write(fn(Target<'a>) -> Write<'a>),
    /// Writes to every collection that `nsInfo` lists.
    BulkWrite,
    /// Writes to the target of a `$out` or `$merge` in `pipeline`. Keyward can carry a `$merge` out itself.
    Aggregate,
    /// Writes to the target in `out`.
    MapReduce,
    /// Removes a whole database.
    DropDatabase,
    /// `create`: harmless, unless it makes the name a view or a time series, encrypts a constraint's fields, or changes the
    /// default collation.
    Create,
    /// As `Definition`; a unique index may become a constraint.
    CreateIndexes,
    /// As `Definition`; an index that it makes unique may become a constraint.
    CollMod,
    /// As `Definition`; the index may be a constraint's.
    DropIndexes,
    /// Harmless; shows the indexes of constraints as unique.
    ListIndexes,
    /// Harmless; hides Keyward's own collections.
    List(Listing),
    /// Harmless; lists the builds of clients' constraints among the operations.
    CurrentOp,
    /// Harmless; may end the build of a client's constraint.
    KillOp,
    /// Changes a collection's definition, not its documents. On proxy collections only Keyward may do that. It must not encrypt
    /// a constraint's fields.
    Definition,
    /// Gives a collection, named by its whole namespace in the first field, another shard key; must not make it a time series.
    ShardKeyChange,
    /// Replaces or moves documents of the collection that the first field names, or creates `toCollection`.
    Rewrite,
    /// The same for whole namespaces, in the first field and in `to`.
    RewriteOfWhole,
    /// Could write to any collection in ways that can't be checked.
    Anywhere,
}

impl<'a> Rule<'a> {
    /// The rule for the command `name`.
    pub fn of(name: &[u8]) -> Option<Rule<'a>> {
        Some(match name {
            b"hello" | b"isMaster" | b"ismaster" => Rule::Hello,
            b"saslStart" | b"saslContinue" | b"authenticate" | b"logout" => Rule::Authenticate,
            b"insert" => Rule::Write(Write::Insert),
            b"update" => Rule::Write(Write::Update),
            b"delete" => Rule::Write(Write::Delete),
            b"findAndModify" | b"findandmodify" => Rule::Write(Write::FindAndModify),
            b"drop" => Rule::Write(Write::Drop),
            b"bulkWrite" => Rule::BulkWrite,
            b"aggregate" => Rule::Aggregate,
            b"mapReduce" | b"mapreduce" => Rule::MapReduce,
            b"dropDatabase" => Rule::DropDatabase,
            b"create" => Rule::Create,
            b"createIndexes" => Rule::CreateIndexes,
            b"dropIndexes" | b"deleteIndexes" => Rule::DropIndexes,
            b"listIndexes" => Rule::ListIndexes,
            b"listCollections" => Rule::List(Listing::Collections),
            b"currentOp" => Rule::CurrentOp,
            b"killOp" => Rule::KillOp,
            b"listDatabases" => Rule::List(Listing::Databases),
            b"collMod" => Rule::CollMod,
            b"reIndex" | b"createSearchIndexes" | b"updateSearchIndex" | b"dropSearchIndex" => Rule::Definition,
            b"shardCollection" | b"shardcollection" | b"refineCollectionShardKey" | b"reshardCollection" => {
                Rule::ShardKeyChange
            }
            b"convertToCapped"
            | b"cloneCollectionAsCapped"
            | b"compactStructuredEncryptionData"
            | b"cleanupStructuredEncryptionData" => Rule::Rewrite,
            b"renameCollection" | b"unshardCollection" | b"moveCollection" => Rule::RewriteOfWhole,
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
}

static HARMLESS_NAMES: LazyLock<HashSet<&[u8]>> =
    LazyLock::new(|| HARMLESS.iter().map(|name| name.as_bytes()).collect());

/// Commands that can't change the documents of a collection, and can't remove a collection.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    // reading
    "find", "getMore", "killCursors", "count", "distinct", "explain",
    "listSearchIndexes", "dbStats", "dbstats", "collStats", "collstats", "dataSize", "datasize",
    "dbHash", "dbhash", "validate", "validateDBMetadata", "checkMetadataConsistency", "parallelCollectionScan",
    "geoSearch", "geoNear", "group", "splitVector", "medianKey", "checkShardingIndex", "planCacheListFilters",
    // sessions, transactions
    "commitTransaction", "abortTransaction", "startSession", "endSessions", "refreshSessions", "killSessions",
    "killAllSessions", "killAllSessionsByPattern", "getnonce", "getLastError", "getlasterror", "getPrevError", "resetError", "connectionStatus",
    // diagnosis
    "ping", "buildInfo", "buildinfo", "hostInfo", "hostinfo", "serverStatus", "getCmdLineOpts", "getLog",
    "getParameter", "setParameter", "whatsmyuri", "whatsmysni", "features", "availableQueryOptions", "listCommands",
    "top", "profile", "lockInfo", "isdbgrid", "isDbGrid", "connPoolStats", "shardConnPoolStats",
    "connPoolSync", "getDiagnosticData", "getFreeMonitoringStatus", "setFreeMonitoring", "logApplicationMessage",
    "logRotate", "rotateCertificates", "driverOIDTest", "sleep", "configureFailPoint", "waitForFailPoint",
    "getDefaultRWConcern", "setDefaultRWConcern", "getAuditConfig", "setAuditConfig", "_isSelf", "_hashBSONElement",
    "queryStats", "analyze", "configureQueryAnalyzer", "analyzeShardKey", "setQuerySettings", "removeQuerySettings",
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
    "removeshard", "removeShardFromZone", "updateZoneKeyRange", "movePrimary", "moveprimary",
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
