//! Hears jobs and viewers, and tells the launcher what the desk decides.

use super::book::Book;
use super::desk::Desk;
use super::found::{Finder, HeldUp, Root};
use crate::launching::{FromLauncher, ToLauncher};
use crate::policy::Policy;
use crate::{descriptors, host, procfs};
use anyhow::{Context, Result};
use stallscope_wire::{Beside, JobReport, JobSays, NodeClient, NodeHello, NodeReply, VERSION};
use std::collections::HashMap;
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{interval, sleep, timeout};

/// A caller who says nothing for longer is disconnected.
const HELLO: Duration = Duration::from_secs(2);
/// Connections of one user, root excepted, and of all, where there are as many descriptors: more is a mistake or an attack.
const OF_A_USER: usize = 256;
const OF_ALL: usize = 4096;
/// A job's reports are taken no faster; it keeps those that wait.
const BETWEEN_REPORTS: Duration = Duration::from_millis(20);
/// How often a session that failed is thought of.
const TICK: Duration = Duration::from_secs(1);
/// How often jobs are looked for that introduce themselves by nothing.
const LOOK: Duration = Duration::from_secs(10);
/// Events that wait; more make the callers wait.
const EVENTS: usize = 256;
/// Orders that wait for the launcher: one to end and one to begin for each connection there can be. Callers wait while half of
/// these places are taken.
const ORDERS: usize = 4 * OF_ALL;

/// Who waits to be taken up comes after all before: with the 4,096 that the system allows, one user who connects without end had others
/// wait for longer than they may. Who finds it full tries again.
const QUEUE: i32 = 64;
/// Those who call are taken up for so long in a row: who hung up again keeps others out of the queue.
const ACCEPT_FOR: Duration = Duration::from_millis(5);

mod exporter;
mod lines;
mod names;
mod peer;
mod reception;
mod share;
#[cfg(test)]
mod tests;

use exporter::Exporter;
use lines::Lines;
use names::{LooksUp, Names};
use peer::Peer;
use reception::{Answer, Reception, known_to};
use share::Share;

enum Event {
    Called {
        hello: NodeHello,
        peer: Peer,
        payer: u32,
        /// The name of the user for whom it speaks, where that takes one and there is an answer.
        user: Option<String>,
        reply: oneshot::Sender<(Option<Known>, NodeReply)>,
    },
    /// As process `pid`, which `by` has started, or was started for.
    Started {
        job: u64,
        pid: u32,
        by: Peer,
    },
    Reported {
        job: u64,
        report: Box<JobReport>,
        payer: u32,
    },
    Gone {
        job: u64,
    },
    HungUp {
        payer: u32,
    },
    /// The process that exports asks, which hears what root does.
    Exports {
        asks: NodeClient,
        reply: oneshot::Sender<NodeReply>,
    },
    /// Jobs that introduce themselves by nothing.
    Found {
        roots: Vec<Root>,
        /// Names of their users, as far as there are answers.
        users: HashMap<u32, String>,
        held_up: Vec<HeldUp>,
    },
}

/// What the part that hears users is given by root.
pub(super) struct Given {
    pub(super) listener: StdListener,
    pub(super) launcher: StdStream,
    pub(super) policy: Policy,
    pub(super) book: Book,
    /// The user that the service has to itself, who may pause the node.
    pub(super) own_uid: Option<u32>,
    /// Whether it has done what the configuration has in `[export]`.
    pub(super) exports: bool,
    /// A user's login name, which a directory service may have.
    pub(super) login_name: LooksUp,
}

/// A job that has introduced itself: its number, and what it is to hear, as that changes.
struct Known {
    job: u64,
    news: watch::Receiver<News>,
}

/// What a job's caches may have, and what others read beside it; `None`: nothing was decided of it yet.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    cache_bytes: Option<u64>,
    beside: Option<Beside>,
}

pub(super) fn serve(given: Given, config: &Path, say: fn(&str)) -> Result<()> {
    let Given { listener, launcher, policy, mut book, own_uid, exports, login_name } = given;
    launcher.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    shorten_queue(&listener)?;
    runtime.block_on(async move {
        let listener = UnixListener::from_std(listener)?;
        let (mut from_launcher, mut to_launcher) = UnixStream::from_std(launcher)?.into_split();
        let folder_of = |policy: &Policy| policy.recordings.as_ref().map(|recordings| recordings.dir.clone());
        let (folder, export) = (folder_of(&policy), policy.export.clone());
        let mut desk = Desk::new(policy, host::node_memory_bytes(), book.pauses());
        if let Some(paused) = desk.pauses().of_node() {
            say(&format!("the node is paused by {}; `stallscope node resume` ends that", paused.by));
        }
        let (sender, mut events) = mpsc::channel(EVENTS);
        // Written beside: were the launcher's answers not read meanwhile, each would wait for the other.
        let (orders_to, mut ordered) = mpsc::channel::<ToLauncher>(ORDERS);
        tokio::spawn(async move {
            while let Some(order) = ordered.recv().await {
                // Where the launcher has ended, this process does.
                let _ = to_launcher.write_all(&order.encode()).await;
            }
        });
        let places = OF_ALL.min(descriptors::places());
        let looks = Arc::new(AtomicBool::new(desk.looks_for_jobs()));
        let names = Names::new(login_name, book.subordinates().clone(), say);
        let finder = start(Finder::new(book.subordinates().clone()))?;
        tokio::spawn(look(Arc::clone(&looks), LOOK, finder, Arc::clone(&names), sender.clone()));
        let share = Share::with_alarm();
        let exporter =
            exports.then(|| Exporter::start(export, sender.clone(), book.end(), share.clone(), say));
        let (mut ticks, mut connections) = (interval(TICK), HashMap::new());
        let mut tellers: HashMap<u64, watch::Sender<News>> = HashMap::new();
        let mut message = Box::pin(FromLauncher::read(&mut from_launcher));
        loop {
            let now = Instant::now();
            let orders: Vec<ToLauncher> = tokio::select! {
                accepted = listener.accept() => {
                    let mut next = Some(accepted);
                    while let Some(accepted) = next {
                        let Ok((stream, _)) = accepted else {
                            // Out of descriptors.
                            sleep(Duration::from_millis(50)).await;
                            break;
                        };
                        take_up(stream, &book, &mut connections, places, &sender, &share, &names);
                        // None is taken from the queue that is not taken up.
                        next = tokio::select! {
                            biased;
                            accepted = listener.accept(), if now.elapsed() < ACCEPT_FOR => Some(accepted),
                            () = std::future::ready(()) => None,
                        };
                    }
                    Vec::new()
                }
                Some(event) = events.recv(), if orders_to.capacity() > ORDERS / 2 => match event {
                    Event::Called { hello, peer, payer, user, reply } => {
                        let mut reception = Reception { desk: &mut desk, book: &mut book, own_uid };
                        let answer = share.during(payer, || reception.answer(hello, peer, user));
                        let Answer { job, reply: answer, orders } = answer;
                        let known = job.map(|job| {
                            let (teller, news) = watch::channel(News::default());
                            tellers.insert(job, teller);
                            Known { job, news }
                        });
                        let _ = reply.send((known, answer));
                        orders
                    }
                    Event::Started { job, pid, by } => {
                        // In a container processes have other numbers, and this one may be any other job's here.
                        let has_started = by.pid.is_some() && procfs::parent(pid) == by.pid;
                        let is_its = |ticks: &u64| has_started || desk.is_collected(job, (pid, *ticks));
                        match by.started(pid).filter(is_its) {
                            Some(ticks) => desk.started(job, pid, ticks),
                            None => {
                                desk.unseen(job);
                                Vec::new()
                            }
                        }
                    }
                    Event::Reported { job, report, payer } => {
                        share.during(payer, || {
                            let age = desk.start_ticks(job).map(procfs::age).unwrap_or_default();
                            desk.reported(job, &report, age, now);
                        });
                        Vec::new()
                    }
                    Event::Gone { job } => {
                        tellers.remove(&job);
                        desk.gone(job)
                    }
                    Event::Exports { asks, reply } => {
                        let _ = reply.send(known_to(&desk, &book, &asks, 0));
                        Vec::new()
                    }
                    Event::Found { roots, users, held_up } => {
                        held_up.into_iter().for_each(|one| say(&not_searched(one)));
                        let mut reception = Reception { desk: &mut desk, book: &mut book, own_uid };
                        reception.found(&roots, &users, now)
                    }
                    Event::HungUp { payer } => {
                        connections.entry(payer).and_modify(|count: &mut usize| *count -= 1);
                        connections.retain(|_, count| *count > 0);
                        Vec::new()
                    }
                },
                read = &mut message => {
                    // It ends first, and has the reason.
                    let Ok(read) = read else { return Ok(()) };
                    drop(message);
                    message = Box::pin(FromLauncher::read(&mut from_launcher));
                    match read {
                        FromLauncher::Ended { id, code } => desk.ended(id, code, now),
                        FromLauncher::Reload => match Policy::read(config) {
                            Ok(policy) => {
                                names.forget();
                                say("the configuration was read again and is in force");
                                // The launcher has it, which alone could make another.
                                let another = folder_of(&policy);
                                if another.is_some() && another != folder {
                                    say("recordings.dir is another, which a restart of the service takes");
                                }
                                if let Some(exporter) = &exporter {
                                    exporter.follow(&policy.export);
                                }
                                let orders = desk.reload(policy);
                                looks.store(desk.looks_for_jobs(), Ordering::Relaxed);
                                orders
                            }
                            Err(why) => {
                                say(&format!("the configuration that was read before stays in force: {why}"));
                                Vec::new()
                            }
                        },
                    }
                }
                _ = ticks.tick() => {
                    book.second(now);
                    desk.tick(now)
                }
            };
            for (job, bytes) in desk.take_grants() {
                if let Some(teller) = tellers.get(&job) {
                    teller.send_modify(|news| news.cache_bytes = Some(bytes));
                }
            }
            for (job, beside) in desk.take_beside() {
                if let Some(teller) = tellers.get(&job) {
                    teller.send_modify(|news| news.beside = Some(beside));
                }
            }
            for event in desk.take_events() {
                book.note(event, now);
            }
            for order in orders {
                orders_to.send(order).await.context("the launcher has ended")?;
            }
        }
    })
}

/// Of a socket that listens already, as the one that was bound does.
fn shorten_queue(listener: &StdListener) -> Result<()> {
    rustix::net::listen(listener, QUEUE).context("cannot bound the queue of the node's service")
}

/// A user may have fewer than are still free of all `places`: four users with 256 each had all that the 1,024 descriptors allow which
/// a program has that root starts by hand, and no further user was served.
fn most_of_a_user(of_all: usize, places: usize) -> usize {
    OF_A_USER.min(places.saturating_sub(of_all))
}

/// What a look found.
type Looked = (Vec<Root>, Vec<HeldUp>);

/// The finder looks when asked, beside the service, as a node may have tens of thousands of processes. Its thread is there from the
/// start: later there may be a moment without one to be had, as one user may have as many processes as there can be.
fn start(mut finder: Finder) -> Result<mpsc::Sender<oneshot::Sender<Looked>>> {
    let (ask, mut asked) = mpsc::channel::<oneshot::Sender<Looked>>(1);
    let looks = move || {
        while let Some(reply) = asked.blocking_recv() {
            let roots = finder.look();
            // The service may have ended.
            let _ = reply.send((roots, finder.held_up()));
        }
    };
    std::thread::Builder::new()
        .name("finder".into())
        .spawn(looks)
        .context("no thread to look for jobs in")?;
    Ok(ask)
}

/// Looks for jobs for as long as somebody hears of them.
async fn look(
    is_on: Arc<AtomicBool>,
    every: Duration,
    finder: mpsc::Sender<oneshot::Sender<Looked>>,
    names: Arc<Names>,
    events: mpsc::Sender<Event>,
) {
    loop {
        sleep(every).await;
        if !is_on.load(Ordering::Relaxed) {
            continue;
        }
        let (reply, looked) = oneshot::channel();
        if finder.send(reply).await.is_err() {
            return;
        }
        let Ok((roots, held_up)) = looked.await else { return };
        let users = names.of_all(roots.iter().map(|root: &Root| root.uid)).await;
        if events.send(Event::Found { roots, users, held_up }).await.is_err() {
            return;
        }
    }
}

/// The user's number alone: a directory service may not answer, and this is printed in the service's one loop.
fn not_searched(HeldUp { payer, pid }: HeldUp) -> String {
    format!(
        "processes of user {payer} are not searched for jobs until process {pid} lets its command line be read: its memory is \
         locked, as by a file system that does not answer"
    )
}

fn take_up(
    stream: UnixStream,
    book: &Book,
    connections: &mut HashMap<u32, usize>,
    places: usize,
    events: &mpsc::Sender<Event>,
    share: &Share,
    names: &Arc<Names>,
) {
    let Some(peer) = Peer::of(&stream) else { return };
    let payer = peer.payer(book);
    let (of_all, of_user) =
        (connections.values().sum::<usize>(), connections.get(&payer).copied().unwrap_or(0));
    if !peer.is_root && of_user >= most_of_a_user(of_all, places) {
        return share.closing(payer, || drop(stream));
    }
    *connections.entry(payer).or_default() += 1;
    let (events, own_share, names) = (events.clone(), share.clone(), Arc::clone(names));
    share.during(payer, || {
        tokio::spawn(async move {
            let (read, write) = stream.into_split();
            let mut lines = Lines::new(read, payer, own_share.clone());
            hear(&mut lines, write, peer, payer, &events, &own_share, &names).await;
            own_share.closing(payer, || drop(lines));
            let _ = events.send(Event::HungUp { payer }).await;
        })
    });
}

/// One connection from its greeting to its end.
async fn hear(
    lines: &mut Lines,
    mut write: OwnedWriteHalf,
    peer: Peer,
    payer: u32,
    events: &mpsc::Sender<Event>,
    share: &Share,
    names: &Arc<Names>,
) {
    // Before it is known to have hung up: those of a user who connects without end take up that user's places, and what comes
    // beyond them costs next to nothing.
    share.turn(payer).await;
    let Some(first) = lines.next(Some(HELLO)).await else { return };
    let (reply, answered) = oneshot::channel();
    let (known, answer) = match share.during(payer, || stallscope_wire::decode::<NodeHello>(&first)) {
        // A shim has its own version, which is looked at later.
        Ok(hello) if hello.stallscope == VERSION || matches!(hello.client, NodeClient::Shim(_)) => {
            let user = match hello.client {
                NodeClient::List | NodeClient::Log { .. } => None,
                _ => names.of(peer.speaks_for(&hello.client)).await,
            };
            if events.send(Event::Called { hello, peer, payer, user, reply }).await.is_err() {
                return;
            }
            let Ok(answer) = answered.await else { return };
            answer
        }
        Ok(NodeHello { stallscope: theirs, .. }) => {
            (None, NodeReply::Error(stallscope_wire::Error::Version { theirs }.to_string()))
        }
        Err(error) => (None, NodeReply::Error(error.to_string())),
    };
    let answer = share.during(payer, || stallscope_wire::encode(&answer));
    let written = timeout(HELLO, write.write_all(&answer)).await;
    let Some(Known { job, news }) = known else { return };
    // Once: a job does not begin twice.
    if matches!(written, Ok(Ok(())))
        && let Some(says) = lines.next(None).await
        && let Ok(JobSays::Started { pid }) = stallscope_wire::decode(&says)
        && events.send(Event::Started { job, pid, by: peer }).await.is_ok()
    {
        let (hears, own_share) = (tell(write, news), share.clone());
        tokio::spawn(async move {
            let write = hears.await;
            own_share.closing(payer, || drop(write));
        });
        let mut taken: Option<Instant> = None;
        while let Some(says) = lines.next(None).await {
            // Before a report that comes too soon alone: a pause after each would wake the service twice as often.
            if let Some(left) = taken.and_then(|taken| BETWEEN_REPORTS.checked_sub(taken.elapsed())) {
                sleep(left).await;
                share.turn(payer).await;
            }
            taken = Some(Instant::now());
            // What is no message is no reason to leave the job alone.
            let says = share.during(payer, || stallscope_wire::decode(&says));
            // Of no job of root is anything changed, and what root says has no bounds in the audit.
            if let Ok(JobSays::Report(report)) = says
                && !peer.is_containers_root()
                && events.send(Event::Reported { job, report, payer }).await.is_err()
            {
                break;
            }
        }
    }
    let _ = events.send(Event::Gone { job }).await;
}

/// Until the job is gone. One that does not read is hung up on, and calls again.
async fn tell(mut write: OwnedWriteHalf, mut news: watch::Receiver<News>) -> OwnedWriteHalf {
    let mut before = News::default();
    while news.changed().await.is_ok() {
        let now = *news.borrow_and_update();
        let granted = now.cache_bytes.filter(|_| now.cache_bytes != before.cache_bytes);
        let beside = now.beside.filter(|_| now.beside != before.beside);
        before = now;
        let mut lines = Vec::new();
        lines.extend(granted.map(|cache_bytes| NodeReply::Granted { cache_bytes }));
        lines.extend(beside.map(NodeReply::Beside));
        let lines: Vec<u8> = lines.iter().flat_map(stallscope_wire::encode).collect();
        if !matches!(timeout(HELLO, write.write_all(&lines)).await, Ok(Ok(()))) {
            break;
        }
    }
    write
}
