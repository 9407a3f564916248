//! Probes the deployment: asks the server that clients' connections use whether it answers at all.
//!
//! The driver's monitoring notices a server whose connections break. It notices one that only hangs after many seconds, or never. The
//! probe sends `hello`, which no lock and no shard delays, on a connection that it keeps. If that server doesn't answer and
//! another one does, clients' connections go to the other one.

use std::time::Duration;

use futures_util::future::join_all;
use mongodb::options::ServerAddress;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Connection, Targets, Upstream};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply;

/// How often the deployment is probed.
const EVERY: Duration = Duration::from_secs(1);
/// How long a server may take to accept a connection and to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks whether the deployment can be reached.
#[derive(Debug)]
pub struct Probe {
    upstream: Upstream,
    targets: watch::Receiver<Targets>,
    /// The connection of the last answer.
    kept: Option<Connection>,
}

impl Probe {
    /// One that has asked nothing yet.
    pub fn of(upstream: &Upstream) -> Probe {
        Probe {
            targets: upstream.targets(),
            upstream: upstream.clone(),
            kept: None,
        }
    }

    /// Asks the server that clients' connections use, and all others if it doesn't answer. Gives the time that the answer took.
    ///
    /// # Errors
    /// For each server, why it can't be used.
    pub async fn ask(&mut self) -> Result<Duration, String> {
        let addresses = self.upstream.in_order(&self.targets.borrow_and_update());
        let Some((first, others)) = addresses.split_first() else {
            return Err(self.upstream.why_no_target());
        };
        let kept = self.kept.take().filter(|kept| kept.address() == first);
        let reason = match self.upstream.probe(first, kept).await {
            Ok((connection, round_trip)) => {
                self.kept = Some(connection);
                return Ok(round_trip);
            }
            Err(reason) => reason,
        };
        let answers = join_all(others.iter().map(|address| self.upstream.probe(address, None))).await;
        let mut reasons = vec![reason];
        for answer in answers {
            match answer {
                Ok((connection, round_trip)) => {
                    let (reason, instead) = (reasons.join("; "), connection.address());
                    tracing::warn!(reason, %instead, "a server does not answer; connections go to another one");
                    self.upstream.choose(instead, first);
                    self.kept = Some(connection);
                    return Ok(round_trip);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    /// Waits until it is time to ask again: for a second, or until the driver knows other servers.
    ///
    /// - Cancel: at any time.
    pub async fn pause(&mut self) {
        // An error means that the driver's monitoring has ended, which it doesn't before this does.
        if let Ok(Err(_)) = timeout(EVERY, self.targets.changed()).await {
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl Upstream {
    /// Asks one server, on the connection `kept` if that still works.
    pub(super) async fn probe(
        &self,
        address: &ServerAddress,
        kept: Option<Connection>,
    ) -> Result<(Connection, Duration), String> {
        let asking = async {
            if let Some(mut connection) = kept
                && let Ok(round_trip) = hello(&mut connection).await
            {
                return Ok((connection, round_trip));
            }
            // A connection may end though its server can be reached.
            let mut connection = self.connect_to(address).await.map_err(|error| error.to_string())?;
            let round_trip = hello(&mut connection).await?;
            Ok((connection, round_trip))
        };
        let answered = timeout(PATIENCE, asking).await;
        let answered = answered.unwrap_or_else(|_| {
            let patience = humantime::format_duration(PATIENCE);
            Err(format!("no answer within {patience}"))
        });
        answered.map_err(|reason| format!("{address}: {reason}"))
    }
}

async fn hello(connection: &mut Connection) -> Result<Duration, String> {
    let mut hello = Builder::new();
    hello.int32("hello", 1).string("$db", b"admin");
    let begun = Instant::now();
    let body = connection
        .run(&hello.finish())
        .await
        .map_err(|error| error.to_string())?;
    let round_trip = begun.elapsed();
    let refusal = || {
        let answer = Doc::new(&body)?;
        if reply::is_ok(answer)? {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(reply::errmsg(answer)?.unwrap_or_default()).into_owned();
        Ok(Some(format!(
            "{text} (code {})",
            reply::code(answer)?.unwrap_or_default()
        )))
    };
    match refusal() {
        Ok(None) => Ok(round_trip),
        // A server that is about to shut down, say.
        Ok(Some(refusal)) => Err(refusal),
        Err(error) => Err(Malformed::to_string(&error)),
    }
}
