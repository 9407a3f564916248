//! Starts child processes that die with this one, however it dies.
//!
//! The kernel sends the signal (`PR_SET_PDEATHSIG`) when the *thread* that forked the child ends, so all children are
//! forked from one thread that lives as long as the process. Only the child itself is bound, not what it starts in
//! turn. Linux only, as the fetched `mongod` is.

use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::Signal;

struct Order {
    command: Command,
    answer: Sender<io::Result<Child>>,
}

static FORKING_THREAD: OnceLock<Sender<Order>> = OnceLock::new();

/// Starts `command` as a child that is killed (SIGKILL) as soon as this process is gone.
///
/// # Errors
/// As [`Command::spawn`].
///
/// # Panics
/// If the thread that forks can't be started.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    die_with_parent(&mut command);
    let (answer, child) = channel();
    let forking_thread = FORKING_THREAD.get_or_init(start_forking_thread);
    let lost = |_| io::Error::other("the forking thread has ended");
    forking_thread
        .send(Order { command, answer })
        .map_err(|_| io::Error::other("the forking thread has ended"))?;
    child.recv().map_err(lost)?
}

fn start_forking_thread() -> Sender<Order> {
    let (orders, incoming) = channel::<Order>();
    let serve = move || {
        // The static keeps the sender for ever, so this thread ends only with the process.
        for mut order in incoming {
            let _ = order.answer.send(order.command.spawn());
        }
    };
    thread::Builder::new()
        .name("forking".to_owned())
        .spawn(serve)
        .expect("a thread can be started");
    orders
}

#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let bind = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died between the fork and the line above: then no signal will come.
        if parent_id() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: the closure runs between fork and exec. It makes two system calls (prctl, getppid), both async-signal-safe,
    // takes no lock and allocates nothing.
    unsafe { command.pre_exec(bind) };
}
