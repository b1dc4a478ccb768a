//! Who a client of the metrics is: the user whose socket it is, where that is on this machine, else its address.

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use stallscope_ebpf::Subordinates;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// One of those among whom connections are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    User(u32),
    Address(IpAddr),
}

/// Asks the kernel whose sockets are (sock_diag(7)). Its socket is opened before there is no right to any more.
#[derive(Debug)]
pub(super) struct Peers {
    kernel: Option<OwnedFd>,
    /// One user may have 65,536 ids, and is one peer with all of them.
    subordinates: Subordinates,
}

impl Peers {
    /// Where the kernel has no such answers, addresses alone are known.
    pub(super) fn open() -> Peers {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kernel =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG)).ok();
        Peers { kernel, subordinates: Subordinates::of_this_machine() }
    }

    /// `client`: the other side's end of a connection of which we have the end `own`.
    pub(super) fn of(&self, client: SocketAddr, own: SocketAddr) -> Peer {
        let (client, own) = (canonical(client), canonical(own));
        let user = self.user_of(client, own).map(|uid| self.subordinates.payer(uid));
        user.map_or(Peer::Address(network(client.ip())), Peer::User)
    }

    /// Whose program listens at `address`, as far as the kernel says so.
    pub(super) fn holder_of(&self, address: SocketAddr) -> Option<u32> {
        let nobody = match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.user_of(address, SocketAddr::new(nobody, 0))
    }

    fn user_of(&self, client: SocketAddr, own: SocketAddr) -> Option<u32> {
        let socket = self.kernel.as_ref()?;
        rustix::io::write(socket, &question(client, own)).ok()?;
        let mut answer = [0; 1024];
        // The kernel has answered when it has been asked.
        let length = rustix::io::read(socket, &mut answer).ok()?;
        user_in(answer.get(..length)?)
    }
}

/// What one machine has of the newer family's addresses: who has one there has 2^64, and had a share with each.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

/// One that came to a socket for both families as if it were of the newer.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2`.
const QUESTION_BYTES: usize = 56;
/// `idiag_uid` of the `struct inet_diag_msg` behind the header.
const UID_AT: usize = HEADER_BYTES + 64;
/// `idiag_inode`: 0 where no process has the socket any more.
const INODE_AT: usize = UID_AT + 4;

/// For the one socket at `client` that is connected with `own`.
fn question(client: SocketAddr, own: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    bytes.extend(((HEADER_BYTES + QUESTION_BYTES) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // Number and port of the asking socket: the only one.
    bytes.extend([0; 8]);
    let family = if client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // In any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(octets(client.ip()));
    bytes.extend(octets(own.ip()));
    // By any interface; no cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
    }
}

/// `None` where there is no such socket, or it is closed: nobody has it then, and it shows as root's.
fn user_in(answer: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let (uid, inode) = (word(UID_AT)?, word(INODE_AT)?);
    (kind == SOCK_DIAG_BY_FAMILY && inode != 0).then_some(uid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_client_on_this_machine_is_its_user() {
        let peers = Peers::open();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // Not every machine has the newer family.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let local = if address.starts_with("[::1]") { "::1" } else { "127.0.0.1" };
            let _client = TcpStream::connect((local, port)).unwrap();
            let (taken, client) = listener.accept().unwrap();
            let peer = peers.of(client, taken.local_addr().unwrap());
            let own = Peer::User(rustix::process::geteuid().as_raw());
            let known = [own, Peer::Address(local.parse().unwrap())];
            assert!(known.contains(&peer), "{address}: {peer:?}");
            // Where the kernel answers at all, it does so for each.
            assert!(peer == own || peers.user_of(client, taken.local_addr().unwrap()).is_none());
        }
        let nobody: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        assert_eq!(peers.of(nobody, "192.0.2.8:9400".parse().unwrap()), Peer::Address(nobody.ip()));
    }

    #[test]
    fn a_client_with_an_id_that_a_user_was_given_is_that_user() {
        let own = rustix::process::geteuid().as_raw();
        // Root's own ids are never another user's, and root may give its socket to whom it likes.
        let uid = if own == 0 { 100_007 } else { own };
        let subordinates = Subordinates::parse(format!("4242:{uid}:1").as_bytes(), b"");
        let peers = Peers { subordinates, ..Peers::open() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::os::unix::fs::fchown(&client, Some(uid), None).unwrap();
        let (taken, address) = listener.accept().unwrap();
        let of = taken.local_addr().unwrap();
        let peer = peers.of(address, of);
        // Where the kernel answers at all.
        assert!(peer == Peer::User(4242) || peers.user_of(address, of).is_none(), "{peer:?}");
    }

    #[test]
    fn a_machine_with_many_addresses_has_one_share() {
        let peers = Peers { kernel: None, subordinates: Subordinates::parse(b"", b"") };
        let own: SocketAddr = "[2001:db8::1]:9400".parse().unwrap();
        let of = |client: &str| peers.of(SocketAddr::new(client.parse().unwrap(), 4000), own);
        assert_eq!(of("2001:db8:0:7::1"), of("2001:db8:0:7:ffff:1:2:3"));
        assert_ne!(of("2001:db8:0:7::1"), of("2001:db8:0:8::1"));
        assert_ne!(of("192.0.2.7"), of("192.0.2.8"));
        assert_eq!(of("::ffff:192.0.2.7"), Peer::Address("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn who_listens_is_known_as_who_connects_is() {
        let peers = Peers::open();
        for (at, asked) in [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1"), ("[::1]:0", "::1")] {
            // Not every machine has the newer family.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let address = SocketAddr::new(asked.parse().unwrap(), listener.local_addr().unwrap().port());
            let holder = peers.holder_of(address);
            let own = rustix::process::geteuid().as_raw();
            let client = TcpStream::connect(address).unwrap();
            let of_client = peers.user_of(client.local_addr().unwrap(), address);
            // Where the kernel answers at all.
            assert_eq!((holder, of_client), (of_client.map(|_| own), of_client), "{at}");
        }
    }

    #[test]
    fn who_has_hung_up_is_not_taken_for_root() {
        let peers = Peers::open();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (taken, address) = listener.accept().unwrap();
        let own = taken.local_addr().unwrap();
        drop(client);
        assert_eq!(peers.of(address, own), Peer::Address(address.ip()));
    }

    #[test]
    fn no_answer_makes_it_panic() {
        for length in 0..200 {
            let _ = user_in(&vec![20; length]);
        }
        let mut answer = vec![0; 100];
        answer[4] = 20;
        answer[UID_AT..UID_AT + 4].copy_from_slice(&4242_u32.to_ne_bytes());
        assert_eq!(user_in(&answer), None, "nobody has it");
        answer[INODE_AT] = 1;
        assert_eq!(user_in(&answer), Some(4242));
        answer[4] = 2;
        assert_eq!(user_in(&answer), None);
    }
}
