//! Keeps the process going that exports what the service does, as the configuration has it: `stallscope node export` as this process's
//! user, without privilege. This process and the launcher speak to no network. It asks by a connection that nobody else has, over
//! which it hears of all jobs.

use super::{Event, Lines, Share};
use crate::policy::Export;
use anyhow::Result;
use stallscope_wire::{LogPlace, NodeClient, NodeHello, VERSION};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

/// From the end of one to the next, which doubles each time; one that has run for longer begins with the first again.
const FIRST_AGAIN: Duration = Duration::from_secs(1);
const LAST_AGAIN: Duration = Duration::from_secs(64);

/// It ends with this.
pub(super) struct Exporter {
    wanted: watch::Sender<Export>,
}

impl Exporter {
    /// `from`: older lines of the audit are not exported.
    pub(super) fn start(
        export: Export,
        events: mpsc::Sender<Event>,
        from: LogPlace,
        share: Share,
        say: fn(&str),
    ) -> Exporter {
        let (wanted, wants) = watch::channel(export);
        tokio::spawn(keep(wants, Asks { events, share, exported: Arc::new(Mutex::new(from)) }, say));
        Exporter { wanted }
    }

    /// The configuration was read again.
    pub(super) fn follow(&self, export: &Export) {
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, export.clone()) != *export);
    }
}

async fn keep(mut wants: watch::Receiver<Export>, asks: Asks, say: fn(&str)) {
    let mut again = FIRST_AGAIN;
    loop {
        let export = wants.borrow_and_update().clone();
        if export.is_nowhere() {
            if wants.changed().await.is_err() {
                return;
            }
            continue;
        }
        let begun = Instant::now();
        let why = match begin(&export, &asks) {
            Ok(mut child) => {
                let ended = tokio::select! {
                    ended = child.wait() => ended,
                    changed = wants.changed() => {
                        let _ = child.kill().await;
                        if changed.is_err() {
                            return;
                        }
                        again = FIRST_AGAIN;
                        continue;
                    }
                };
                ended.map_or_else(|error| error.to_string(), |status| format!("it ended, {status}"))
            }
            Err(error) => format!("it cannot be started: {error:#}"),
        };
        if begun.elapsed() > LAST_AGAIN {
            again = FIRST_AGAIN;
        }
        // Once, and not as often as it is tried.
        if again == FIRST_AGAIN {
            say(&format!("[export]: {why}; it is started again, and no job is concerned"));
        }
        tokio::select! {
            () = sleep(again) => {}
            _ = wants.changed() => {}
        }
        again = LAST_AGAIN.min(again * 2);
    }
}

fn begin(export: &Export, asks: &Asks) -> Result<Child> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = UnixStream::from_std(ours)?;
    let child = Command::new("/proc/self/exe")
        .arg0("stallscope")
        .args(words(export))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    tokio::spawn(asks.clone().answer(ours));
    Ok(child)
}

/// As src/node.rs reads them.
fn words(export: &Export) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["node", "export", "--by-stdin"].map(OsString::from).to_vec();
    if let Some(endpoint) = &export.otlp {
        words.extend(["--otlp".into(), endpoint.to_string().into()]);
    }
    if let Some(address) = export.prometheus {
        words.extend(["--prometheus".into(), address.to_string().into()]);
    }
    if let Some(token) = &export.prometheus_token {
        words.extend(["--prometheus-token".into(), token.clone().into()]);
    }
    words
}

/// What it asks, and is answered.
#[derive(Clone)]
struct Asks {
    events: mpsc::Sender<Event>,
    share: Share,
    /// It asks for a page once the lines before have arrived, or were refused for good: a successor goes on there.
    exported: Arc<Mutex<LogPlace>>,
}

impl Asks {
    /// Until it hangs up.
    async fn answer(self, stream: UnixStream) {
        const ROOT: u32 = 0;
        let (read, mut write) = stream.into_split();
        // Of nobody's share: it is this process's own.
        let mut lines = Lines::new(read, ROOT, self.share.clone());
        while let Some(line) = lines.next(None).await {
            let Ok(NodeHello { stallscope: VERSION, client }) = stallscope_wire::decode(&line) else {
                return;
            };
            let asks = self.placed(client);
            let (reply, answered) = oneshot::channel();
            if self.events.send(Event::Exports { asks, reply }).await.is_err() {
                return;
            }
            let Ok(answer) = answered.await else { return };
            if write.write_all(&stallscope_wire::encode(&answer)).await.is_err() {
                return;
            }
        }
    }

    fn placed(&self, client: NodeClient) -> NodeClient {
        let NodeClient::Log { after } = client else { return client };
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        *exported = after.unwrap_or(*exported);
        NodeClient::Log { after: Some(*exported) }
    }
}
