//! Opens the addresses of a Keyward: that of the admin pages at once, that for clients once it is ready.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

use super::{BACKLOG, StartError};
use crate::admin::Admin;

/// The admin pages; they close when this is dropped.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) address: SocketAddr,
    serving: JoinHandle<io::Result<()>>,
}

impl Pages {
    pub(super) fn open(address: SocketAddr, admin: Admin) -> Result<Self, StartError> {
        let refused = || not_listening("admin", address);
        let listener = bound(address)
            .and_then(|socket| socket.listen(BACKLOG))
            .map_err(refused())?;
        let address = listener.local_addr().map_err(refused())?;
        let serving = tokio::spawn(admin.serve(listener, std::future::pending()));
        Ok(Pages { address, serving })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Binds the address without listening. Until Keyward listens, connecting clients are refused instead of kept waiting.
pub(super) fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Every server does this: lingering connections of a predecessor must not prevent a successor's start.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

pub(super) fn not_listening(setting: &'static str, address: SocketAddr) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Listen {
        setting,
        address,
        cause,
    }
}
