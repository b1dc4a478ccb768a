//! Reports to systemd (sd_notify(3)) that the node's collector serves, and that it still does.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

pub(crate) struct Notify {
    socket: UnixDatagram,
    /// How often to say that we are alive; `None` where nobody waits for it.
    watchdog: Option<Duration>,
    last: Instant,
}

impl Notify {
    /// `None` where no service manager asks for reports.
    pub(crate) fn find() -> Option<Notify> {
        let path = std::env::var("NOTIFY_SOCKET").ok()?;
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        let socket = UnixDatagram::unbound().ok()?;
        // Later no other socket can be reached any more.
        socket.connect_addr(&address.ok()?).ok()?;
        // A manager that does not read holds nobody up.
        socket.set_nonblocking(true).ok()?;
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|_| is_for_us).map(Duration::from_micros);
        Some(Notify { socket, watchdog: limit.map(|limit| limit / 3), last: Instant::now() })
    }

    /// `status`: one line for `systemctl status`.
    pub(crate) fn serves(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// To be called once a turn of whatever must not stand still.
    pub(crate) fn is_alive(&mut self) {
        if self.due_in().is_some_and(|left| left.is_zero()) {
            self.last = Instant::now();
            self.say("WATCHDOG=1\n");
        }
    }

    /// When [`Notify::is_alive`] has to be called next.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        Some(self.watchdog?.saturating_sub(self.last.elapsed()))
    }

    fn say(&self, lines: &str) {
        // systemd ends us if it hears nothing, and that is then right.
        let _ = self.socket.send(lines.as_bytes());
    }
}
