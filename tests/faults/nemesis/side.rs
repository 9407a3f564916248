//! The two strategies, and everything of each: its database, its router, two Keywards and what its clients did.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bson::{Document, doc};
use rand::{SeedableRng, rngs::StdRng};
use testbed::Cluster;
use testbed::cluster::Mongos;

use crate::nemesis::QUIET_WITHIN;
use crate::nemesis::checker::{COLLECTION, Evidence, held_and_reserved};
use crate::nemesis::client::{Client, REGIONS};
use crate::nemesis::history::{self, History, Millis};
use crate::nemesis::keys::{FIELDS, PHONE};
use crate::nemesis::oplog;
use crate::nemesis::phones::{Phones, is_open};
use crate::nemesis::place::Place;
use testkit::on_each_shard;

/// One of the two strategies, with what may be done to it.
pub struct Mode {
    pub name: &'static str,
    lease: &'static str,
    /// How long a Keyward, a router or a command may be stopped. Compensating, what is kept back of the lease for a command's
    /// way: longer would be what it assumes not to happen. Strictly, ten leases.
    pub pause_ms: u64,
    strategy: &'static str,
    /// Whether clients can make constraints beside those of this strategy.
    pub is_for_clients: bool,
}

pub const MODES: [Mode; 2] = [
    Mode {
        name: "compensating",
        lease: "3s\nsweep: 2s",
        pause_ms: 300,
        strategy: "compensating",
        is_for_clients: true,
    },
    Mode {
        name: "strict",
        lease: "1s\nsweep: 2s",
        pause_ms: 10_000,
        strategy: "transaction",
        is_for_clients: false,
    },
];

impl Mode {
    /// What its Keywards enforce in `database`.
    pub fn constraints(&self, database: &str, with_phones: bool) -> String {
        let constraint = |field: &str, sparse: bool| {
            format!(
                "  - {{ collection: {database}.{COLLECTION}, key: {{ {field}: 1 }}, sparse: {sparse}, strategy: {} }}\n",
                self.strategy
            )
        };
        let phones = with_phones.then(|| constraint(PHONE, true));
        [
            constraint("email", false),
            constraint("tags", true),
            phones.unwrap_or_default(),
        ]
        .concat()
    }
}

/// Everything of one mode.
pub struct Side {
    pub mode: &'static Mode,
    pub database: String,
    pub router: Arc<Mongos>,
    pub places: Vec<Arc<Place>>,
    pub phones: Arc<Phones>,
    history: Arc<History>,
    started: Millis,
}

impl Side {
    pub fn start(mode: &'static Mode, cluster: &Arc<Cluster>) -> Side {
        let database = format!("nemesis_{}", mode.name);
        let namespace = format!("{database}.{COLLECTION}");
        cluster
            .shard_collection(&namespace, doc! { "region": 1 }, false)
            .unwrap();
        for region in &REGIONS[1..] {
            cluster.split(&namespace, doc! { "region": *region }).unwrap();
        }
        for (region, shard) in REGIONS.iter().zip(cluster.shards().iter().cycle()) {
            cluster
                .move_chunk(&namespace, doc! { "region": *region }, shard.name())
                .unwrap();
        }
        let router = Arc::new(cluster.start_router().unwrap());
        let constraints = mode.constraints(&database, false);
        let start = |_| {
            Arc::new(Place::start(
                router.address(),
                mode.lease,
                &constraints,
                cluster,
                &database,
            ))
        };
        let places = (0..2).map(start).collect();
        Side {
            mode,
            places,
            database,
            router,
            phones: Arc::default(),
            history: Arc::default(),
            started: history::now(),
        }
    }

    /// A third of the clients know both Keywards, the others one of them.
    pub async fn client(&self, number: usize, seed: u64) -> Client {
        let addresses = match number % 3 {
            2 => format!("{},{}", self.places[0].address(), self.places[1].address()),
            one => self.places[one].address().to_owned(),
        };
        let uri = format!("mongodb://{addresses}/?serverSelectionTimeoutMS=5000&heartbeatFrequencyMS=500");
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        Client {
            number,
            accounts: client.database(&self.database).collection(COLLECTION),
            random: StdRng::seed_from_u64(seed ^ number as u64),
            history: self.history.clone(),
            phones: self.phones.clone(),
        }
    }

    async fn documents_and_reservations(&self, cluster: &Cluster) -> [Vec<Document>; 2] {
        let documents = on_each_shard(cluster.shards(), &self.database, COLLECTION)
            .await
            .concat();
        let mut reservations = Vec::new();
        for field in FIELDS.into_iter().chain([PHONE]) {
            let proxy = format!("keyward.{COLLECTION}.{field}_1");
            reservations.extend(on_each_shard(cluster.shards(), &self.database, &proxy).await.concat());
        }
        [documents, reservations]
    }

    /// Waits until what is held is what is reserved and the shards have removed the copies of moved chunks, or no longer than the limit;
    /// then looks at everything.
    pub async fn evidence(&self, cluster: &Cluster) -> Evidence {
        let started = Instant::now();
        let windows = self.phones.windows();
        let [documents, reservations] = loop {
            let [documents, reservations] = self.documents_and_reservations(cluster).await;
            let [held, reserved] = held_and_reserved(&documents, &reservations, is_open(&windows));
            if held == reserved && is_without_copies(&documents) || started.elapsed() > QUIET_WITHIN {
                break [documents, reservations];
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        };
        println!("{}: quiet after {:?}", self.mode.name, started.elapsed());
        Evidence {
            operations: self.history.operations(),
            moments: oplog::moments(cluster, &self.database, self.started).await,
            windows,
            documents,
            reservations,
        }
    }
}

/// Whether no document is on two shards. A shard removes the copies that a moved chunk leaves behind some time after the move.
fn is_without_copies(documents: &[Document]) -> bool {
    let mut seen = HashSet::new();
    let place = |document: &Document| ["_id", "region"].map(|field| document.get(field).map(ToString::to_string));
    documents.iter().all(|document| seen.insert(place(document)))
}
