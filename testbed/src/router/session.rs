//! One client's connection: reads a request, runs it, answers, and so on until the client leaves.
//!
//! Requests of one connection run one after the other, as on a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use super::Shared;
use super::command::Command;
use super::dispatch::{self, Client};
use super::error::{Failure, ServerError, code};
use super::hello;
use super::message::{FrameError, Framing, Request, encode_reply, parse_request, read_frame};
use super::raw::{Builder, Doc};

/// Takes connections for ever.
pub async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
            // Out of file descriptors, say: the next one may find one again.
            Err(error) => {
                debug!(%error, "connection not accepted");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let id = shared.last_connection.fetch_add(1, Ordering::Relaxed) + 1;
    let peer = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
    let _ = stream.set_nodelay(true);
    let is_load_balanced = shared.is_behind_load_balancer.load(Ordering::SeqCst);
    let mut connection = Connection {
        stream,
        buffer: BytesMut::new(),
        shared,
        client: Client {
            connection_id: id,
            peer,
            has_metadata: false,
            app_name: String::new(),
            owes_balanced_hello: is_load_balanced,
        },
    };
    if let Err(error) = connection.run().await {
        debug!(%error, connection = id, "connection closed");
    }
}

struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    shared: Arc<Shared>,
    client: Client,
}

impl Connection {
    async fn run(&mut self) -> Result<(), FrameError> {
        while let Some(frame) = read_frame(&mut self.stream, &mut self.buffer).await? {
            match parse_request(frame) {
                Ok(request) => self.answer(request).await?,
                Err(FrameError::Refused { id, code, message }) => {
                    let body = ServerError::new(code, message).reply(&[]);
                    let message = encode_reply(0, id, Framing::Message { checksum: false }, false, &body);
                    self.stream.write_all(&message).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn answer(&mut self, request: Request) -> Result<(), FrameError> {
        let command = match Command::parse(&request) {
            Ok(command) => command,
            Err(failure) => {
                return self
                    .reply(&request, &error_body(failure), false, request.id)
                    .await
                    .map(|_| ());
            }
        };
        if request.framing == Framing::LegacyQuery && !hello::is_hello(&command.name) {
            let message = format!(
                "Unsupported OP_QUERY command: {}. The client driver may require an upgrade.",
                command.name
            );
            let error = ServerError::new(code::UNSUPPORTED_OP_QUERY_COMMAND, message);
            return self
                .reply(&request, &error.reply(&[]), false, request.id)
                .await
                .map(|_| ());
        }
        if request.exhaust_allowed && hello::is_awaitable(&command) {
            return self.stream_hellos(&request, command).await;
        }
        let is_hello = hello::is_hello(&command.name);
        let Some(body) = dispatch::run(&self.shared, &mut self.client, command).await else {
            return Err(FrameError::Injected);
        };
        if !request.more_to_come {
            self.reply(&request, &body, false, request.id).await?;
        }
        match is_hello && self.client.owes_balanced_hello {
            true => Err(FrameError::NotLoadBalanced),
            false => Ok(()),
        }
    }

    /// Answers an exhaust `hello` for ever: each reply is a request for the next, until the client closes.
    async fn stream_hellos(&mut self, request: &Request, command: Command) -> Result<(), FrameError> {
        let mut response_to = request.id;
        loop {
            let answer = dispatch::run(&self.shared, &mut self.client, command.clone());
            let body = tokio::select! {
                body = answer => body,
                // A client that leaves, or wants something else, ends the stream.
                _ = self.stream.readable() => return Ok(()),
            };
            let Some(body) = body else {
                return Err(FrameError::Injected);
            };
            let more = Doc::new(&body).is_ok_and(|body| matches!(body.get("ok"), Ok(Some(ok)) if ok.is_truthy()));
            response_to = self.reply(request, &body, more, response_to).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn reply(
        &mut self,
        request: &Request,
        body: &[u8],
        more_to_come: bool,
        response_to: i32,
    ) -> Result<i32, FrameError> {
        let id = self.shared.last_message.fetch_add(1, Ordering::Relaxed);
        let message = encode_reply(id, response_to, request.framing, more_to_come, body);
        self.stream.write_all(&message).await?;
        Ok(id)
    }
}

fn error_body(failure: Failure) -> Vec<u8> {
    match failure {
        Failure::Own(error) => error.reply(&[]),
        Failure::Shard(reply) => reply.public(),
        Failure::Stale(bytes) => Builder::from_document(&bytes).finish(),
    }
}
