//! Probes the deployment: asks the server that clients' connections use whether it answers at all.
//!
//! The driver's monitoring notices a server whose connections break. It notices one that only hangs after many seconds, or never. The
//! probe sends `hello`, which no lock and no shard delays, on a connection that it keeps. If that server doesn't answer and
//! another one does, clients' connections go to the other one.
//!
//! A server that hangs is noticed within [`EVERY`] and [`PATIENCE`], two seconds together. The question is asked often, so that a busy server
//! has most of that time to answer. A deployment that is lost already has [`PATIENCE_IF_LOST`]: a new connection takes several steps, and a
//! deployment that takes long for each of them would stay lost otherwise.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use mongodb::options::ServerAddress;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Connection, Targets, Upstream};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply;

/// How long the probe rests between an answer and the next question.
const EVERY: Duration = Duration::from_millis(500);
/// How long the servers may take to accept a connection and to answer.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// How long they may take while the deployment is lost.
const PATIENCE_IF_LOST: Duration = Duration::from_secs(10);
/// After how long without an answer the probe asks anew on another connection, and all other servers. The first answer still counts.
const LATE: Duration = Duration::from_millis(500);

/// A server's answer: the connection on which it came, and the time that it took.
type ProbeAnswer = (Connection, Duration);

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

    /// Asks the server that clients' connections use, and all others if it doesn't answer. Gives the time that the answer took. If the
    /// deployment `is_lost`, the answer may take longer.
    ///
    /// # Errors
    /// For each server, why it can't be used.
    pub async fn ask(&mut self, is_lost: bool) -> Result<Duration, String> {
        let addresses = self.upstream.in_order(&self.targets.borrow_and_update());
        let kept = self.kept.take();
        let times = AnswerTimes::from_now(match is_lost {
            true => PATIENCE_IF_LOST,
            false => PATIENCE,
        });
        let (connection, round_trip) = self.upstream.probe_in_order(&addresses, kept, times).await?;
        self.kept = Some(connection);
        Ok(round_trip)
    }

    /// Waits until it is time to ask again: for [`EVERY`], or until the driver knows other servers.
    ///
    /// - Cancel: at any time.
    pub async fn pause(&mut self) {
        // An error means that the driver's monitoring has ended, which it doesn't before this does.
        if let Ok(Err(_)) = timeout(EVERY, self.targets.changed()).await {
            tokio::time::sleep(EVERY).await;
        }
    }
}

/// Until when answers are waited for.
#[derive(Debug, Clone, Copy)]
struct AnswerTimes {
    /// From then on, one server's answer is enough. Until then, servers that are asked together all have time to answer.
    enough: Instant,
    /// From then on, no answer counts.
    last: Instant,
    patience: Duration,
}

impl AnswerTimes {
    fn from_now(patience: Duration) -> AnswerTimes {
        let now = Instant::now();
        AnswerTimes {
            enough: now + PATIENCE,
            last: now + patience,
            patience,
        }
    }
}

impl Upstream {
    /// Asks one server.
    pub(super) async fn probe_once(&self, address: &ServerAddress) -> Result<Connection, String> {
        let (connection, _) = self.probe(address, None, AnswerTimes::from_now(PATIENCE)).await?;
        Ok(connection)
    }

    /// Asks the first of `addresses`, on the connection `kept` if that is one to it, and all others if it doesn't answer. If another one
    /// does, that one is chosen.
    async fn probe_in_order(
        &self,
        addresses: &[ServerAddress],
        kept: Option<Connection>,
        times: AnswerTimes,
    ) -> Result<ProbeAnswer, String> {
        let Some((first, others)) = addresses.split_first() else {
            return Err(self.why_no_target());
        };
        let kept = kept.filter(|kept| kept.address() == first);
        let mut asked = pin!(self.probe(first, kept, times));
        let (reason, answers) = match timeout(LATE, asked.as_mut()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(reason)) => (reason, self.probe_all(others, times).await),
            // A connection may be dead though its server isn't, so this server is asked on another one, too.
            Err(_) => match select(asked, pin!(self.probe_all(addresses, times))).await {
                Either::Left((Ok(answer), _)) => return Ok(answer),
                Either::Left((Err(reason), all)) => (reason, all.await),
                Either::Right((answers, asked)) => {
                    let waited = match is_any_answered(&answers) {
                        true => timeout_at(times.enough, asked).await,
                        false => Ok(asked.await),
                    };
                    match waited.unwrap_or_else(|_| Err(no_answer(first, PATIENCE))) {
                        Ok(answer) => return Ok(answer),
                        Err(reason) => (reason, answers),
                    }
                }
            },
        };
        let mut reasons = vec![reason];
        for answer in answers {
            match answer {
                Ok(answer) => {
                    let instead = answer.0.address();
                    if instead != first {
                        let reason = reasons.join("; ");
                        tracing::warn!(reason, %instead, "a server does not answer; connections go to another one");
                        self.choose(instead, first);
                    }
                    return Ok(answer);
                }
                // The first server was asked twice.
                Err(reason) if reasons.contains(&reason) => {}
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    /// Asks servers, each on a new connection. The answers are in the order of `addresses`, without those that come too late.
    async fn probe_all(&self, addresses: &[ServerAddress], times: AnswerTimes) -> Vec<Result<ProbeAnswer, String>> {
        let asked = addresses.iter().enumerate();
        let mut asked: FuturesUnordered<_> = asked
            .map(|(position, address)| async move { (position, self.probe(address, None, times).await) })
            .collect();
        let (mut positions, mut answers) = (Vec::new(), Vec::new());
        loop {
            let next = match is_any_answered(&answers) {
                true => timeout_at(times.enough, asked.next()).await.ok().flatten(),
                false => asked.next().await,
            };
            let Some((position, answer)) = next else {
                return answers;
            };
            let place = positions.partition_point(|before| *before < position);
            positions.insert(place, position);
            answers.insert(place, answer);
        }
    }

    /// Asks one server, on the connection `kept` if that still works.
    async fn probe(
        &self,
        address: &ServerAddress,
        kept: Option<Connection>,
        times: AnswerTimes,
    ) -> Result<ProbeAnswer, String> {
        let asking = async {
            if let Some(mut connection) = kept
                && let Ok(round_trip) = hello(&mut connection, self.is_load_balanced()).await
            {
                return Ok((connection, round_trip));
            }
            // A connection may end though its server can be reached.
            let mut connection = self.connect_to(address).await.map_err(|error| error.to_string())?;
            let round_trip = hello(&mut connection, self.is_load_balanced()).await?;
            Ok((connection, round_trip))
        };
        match timeout_at(times.last, asking).await {
            Ok(answered) => answered.map_err(|reason: String| format!("{address}: {reason}")),
            Err(_) => Err(no_answer(address, times.patience)),
        }
    }
}

fn is_any_answered(answers: &[Result<ProbeAnswer, String>]) -> bool {
    answers.iter().any(Result::is_ok)
}

fn no_answer(address: &ServerAddress, within: Duration) -> String {
    format!("{address}: no answer within {}", humantime::format_duration(within))
}

/// Says `hello` and measures how long the answer takes. A server behind a load balancer answers only to a client that expects one.
async fn hello(connection: &mut Connection, is_load_balanced: bool) -> Result<Duration, String> {
    let mut hello = Builder::new();
    hello.int32("hello", 1);
    if is_load_balanced {
        hello.boolean("loadBalanced", true);
    }
    hello.string("$db", b"admin");
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::wire::{Draft, Header};

    /// A server that answers the first `answered` connections and hangs on all others.
    async fn server(answered: usize) -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ServerAddress::parse(listener.local_addr().unwrap().to_string()).unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                if open.len() < answered {
                    answer(&mut socket).await;
                }
                open.push(socket);
            }
        });
        address
    }

    /// Answers one `hello`.
    async fn answer(socket: &mut TcpStream) {
        let mut header = [0; Header::SIZE];
        socket.read_exact(&mut header).await.unwrap();
        let header = Header::read(&header).unwrap().unwrap();
        let mut rest = vec![0; header.length - Header::SIZE];
        socket.read_exact(&mut rest).await.unwrap();
        let mut ok = Builder::new();
        ok.int32("ok", 1);
        let reply = Draft::of_body(&ok.finish())
            .frame(1, header.request_id)
            .unwrap()
            .to_vec();
        socket.write_all(&reply).await.unwrap();
    }

    /// A server that waits so long before it answers a connection.
    async fn slow_server(delay: Duration) -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ServerAddress::parse(listener.local_addr().unwrap().to_string()).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    answer(&mut socket).await;
                });
            }
        });
        address
    }

    fn usual() -> AnswerTimes {
        AnswerTimes::from_now(PATIENCE)
    }

    fn if_lost() -> AnswerTimes {
        AnswerTimes::from_now(PATIENCE_IF_LOST)
    }

    async fn upstream() -> Upstream {
        Upstream::new("mongodb://127.0.0.1:1/").await.unwrap()
    }

    #[test]
    fn a_server_that_hangs_is_noticed_within_two_seconds() {
        assert!(EVERY + PATIENCE <= Duration::from_secs(2));
        assert!(LATE < PATIENCE, "otherwise no other server is asked");
    }

    /// One after the other, they would take twice as long.
    #[tokio::test]
    async fn all_servers_together_have_the_time_of_one() {
        let (upstream, addresses) = (upstream().await, [server(0).await, server(0).await]);
        let begun = Instant::now();
        let reason = upstream.probe_in_order(&addresses, None, usual()).await.unwrap_err();
        assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
        let [one, other] = addresses;
        assert_eq!(
            reason,
            format!("{one}: no answer within 1s 500ms; {other}: no answer within 1s 500ms")
        );
    }

    /// A firewall may have forgotten it.
    #[tokio::test]
    async fn a_dead_connection_does_not_mean_a_dead_server() {
        let (upstream, addresses) = (upstream().await, [server(2).await]);
        let (kept, _) = upstream.probe_in_order(&addresses, None, usual()).await.unwrap();
        // The server answers only one command on each connection.
        upstream.probe_in_order(&addresses, Some(kept), usual()).await.unwrap();
    }

    /// Every step of a new connection may take long. Such a server would stay lost.
    #[tokio::test]
    async fn a_lost_server_may_take_longer_to_answer() {
        let (upstream, addresses) = (upstream().await, [slow_server(PATIENCE * 2).await]);
        upstream.probe_in_order(&addresses, None, if_lost()).await.unwrap();
    }

    /// It is the one that clients' connections used before.
    #[tokio::test]
    async fn a_lost_server_that_hangs_does_not_delay_another_ones_answer() {
        let upstream = upstream().await;
        let addresses = [server(0).await, server(1).await, server(0).await];
        let begun = Instant::now();
        let (answered, _) = upstream.probe_in_order(&addresses, None, if_lost()).await.unwrap();
        assert_eq!(answered.address(), &addresses[1]);
        assert!(begun.elapsed() < PATIENCE_IF_LOST, "{:?}", begun.elapsed());
    }
}
