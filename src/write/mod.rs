//! Writes to protected collections. For now every one of them is refused.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::classify::{Protection, Write};
use crate::upstream::{self, Connection};
use crate::wire::{OpMsg, ServerError};

/// What the write path shares between connections.
#[derive(Debug, Default)]
pub struct Context {
    catalog: ArcSwap<Catalog>,
}

/// The namespaces that constraints hold on.
#[derive(Debug, Default, Clone)]
pub struct Catalog {
    protected: HashSet<(Vec<u8>, Vec<u8>)>,
}

impl Context {
    /// A context that protects `namespaces`, each a database and a collection.
    pub fn new(namespaces: &[(&str, &str)]) -> Self {
        let protected = namespaces
            .iter()
            .map(|(database, collection)| (database.as_bytes().to_vec(), collection.as_bytes().to_vec()))
            .collect();
        Context {
            catalog: ArcSwap::from_pointee(Catalog { protected }),
        }
    }

    /// The constraints that hold now.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }
}

impl Protection for Catalog {
    fn protects(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protected
            .iter()
            .any(|(ours, theirs)| ours == database && theirs == collection)
    }

    fn protects_any_in(&self, database: &[u8]) -> bool {
        self.protected.iter().any(|(ours, _)| ours == database)
    }

    fn is_proxy_collection(&self, database: &[u8], collection: &[u8]) -> bool {
        collection.starts_with(b"keyward.") && self.protects_any_in(database)
    }
}

/// Serves a write and gives the reply's body.
///
/// # Errors
/// [`upstream::Error`] if the upstream connection fails; the client's connection then ends, too.
pub async fn serve(
    _write: &Write<'_>,
    _message: &OpMsg<'_>,
    _context: &Context,
    _upstream: &mut Connection,
) -> Result<Vec<u8>, upstream::Error> {
    let error = ServerError {
        code: 20,
        code_name: "IllegalOperation",
        message: "Keyward doesn't serve writes to protected collections yet".into(),
    };
    Ok(error.body())
}
