//! The cluster's default read and write concern (`setDefaultRWConcern`): for commands that state none. The shards don't know
//! them; a router reads them from the config server, and tells a shard with each command what it has taken from them.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bson::doc;
use bson::spec::ElementType;
use bytes::Bytes;

use super::Shared;
use super::command::Command;
use super::error::Failure;
use super::raw::{Builder, Doc};

/// As often as a `mongos` asks for them.
const LIFETIME: Duration = Duration::from_secs(10);

/// What commands take that state nothing; `None` where the cluster has no default of its own.
#[derive(Debug, Clone, Default)]
pub struct Concerns {
    /// `defaultReadConcern`.
    pub read: Option<Bytes>,
    /// `defaultWriteConcern`.
    pub write: Option<Bytes>,
}

impl Concerns {
    fn of(settings: Doc<'_>) -> Result<Concerns, Failure> {
        let concern = |name| -> Result<Option<Bytes>, Failure> {
            let field = settings.get(name)?;
            let field = field.filter(|field| field.kind == ElementType::EmbeddedDocument);
            Ok(field.map(|field| Bytes::copy_from_slice(field.value)))
        };
        Ok(Concerns {
            read: concern("defaultReadConcern")?,
            write: concern("defaultWriteConcern")?,
        })
    }

    /// The read concern that `command` has by default: a read without one of its own, in a transaction only the first command.
    /// No transaction reads with `available`; a server refuses one that begins so, and so does the shard here.
    pub fn read_for(&self, command: &Command) -> Option<Bytes> {
        let stated = command.read_concern.as_ref().and_then(|stated| Doc::new(stated).ok());
        let is_read = matches!(command.name.as_str(), "find" | "aggregate" | "count" | "distinct");
        let takes_one = is_read && (!command.in_transaction || command.starts_transaction);
        let default = self
            .read
            .as_ref()
            .filter(|_| takes_one && stated.is_none_or(Doc::is_empty))?;
        Some(marked(Doc::new(default).ok()?).finish().into())
    }
}

/// A default as the shards are told of it.
pub fn marked(default: Doc<'_>) -> Builder {
    let mut marked = Builder::new();
    for element in default.elements().flatten() {
        marked.element(&element);
    }
    marked.string("provenance", b"customDefault");
    marked
}

/// The router's copy of them.
#[derive(Debug, Default)]
pub struct DefaultConcerns {
    known: RwLock<Option<(Instant, Concerns)>>,
    /// Held by the one who reads them, so that the others needn't.
    reading: tokio::sync::Mutex<()>,
}

impl DefaultConcerns {
    /// From now on they are read anew before anything is taken from them.
    pub async fn forget(&self) {
        // Who reads them now may have read what was.
        let _reading = self.reading.lock().await;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn known(&self) -> Option<(Instant, Concerns)> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is known of them. An old copy does while it is read anew.
///
/// # Errors
/// The failure to read the config server, if nothing is known.
pub async fn current(shared: &Arc<Shared>) -> Result<Concerns, Failure> {
    if let Some((read, concerns)) = shared.default_concerns.known() {
        if read.elapsed() >= LIFETIME {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                if let Ok(_reading) = shared.default_concerns.reading.try_lock() {
                    let _ = load(&shared).await;
                }
            });
        }
        return Ok(concerns);
    }
    let _reading = shared.default_concerns.reading.lock().await;
    match shared.default_concerns.known() {
        Some((_, concerns)) => Ok(concerns),
        None => load(shared).await,
    }
}

async fn load(shared: &Shared) -> Result<Concerns, Failure> {
    let filter = doc! { "_id": "ReadWriteConcernDefaults" };
    let found = shared.catalog.find(&shared.link(), "settings", filter, doc! {}).await?;
    let concerns = match found.first() {
        Some(settings) => Concerns::of(Doc::new(settings)?)?,
        None => Concerns::default(),
    };
    let mut known = shared
        .default_concerns
        .known
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    *known = Some((Instant::now(), concerns.clone()));
    Ok(concerns)
}
