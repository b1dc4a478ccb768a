use super::*;
use proptest::prelude::*;

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<(u32, u32, u32, Option<u64>)>().prop_map(|(request, id, limit_ms, tag)| Request::Claim {
            request,
            id,
            limit_ms,
            tag
        }),
        any::<(u32, u32, u64, u64, u64, u64)>().prop_map(|(request, id, tag, bytes, at, next_at)| {
            Request::Fill { request, id, tag, bytes, at, next_at }
        }),
        any::<(u32, u32, u64)>().prop_map(|(request, id, bytes)| Request::Bytes { request, id, bytes }),
        any::<(u32, u32)>().prop_map(|(request, id)| Request::GiveUp { request, id }),
        prop::collection::vec(any::<(u32, u64, u64)>(), 0..9).prop_map(Request::Used),
        prop::collection::vec(any::<(u32, u64)>(), 0..9).prop_map(Request::Planned),
        prop::collection::vec((any::<u32>(), -1e9..1e9), 0..9).prop_map(Request::Scored),
        Just(Request::Epoch),
        any::<(u32, u64)>().prop_map(|(request, capacity_bytes)| Request::Resize { request, capacity_bytes }),
        joints().prop_map(Request::Joint),
    ]
}

fn joints() -> impl Strategy<Value = Joint> {
    prop_oneof![
        any::<(u64, u64, u64, u64, u32, u32)>().prop_map(
            |(loader, samples, epoch_uses, job, rank, ranks)| {
                Joint::Join(Member { loader, samples, epoch_uses, job, rank, ranks })
            }
        ),
        (any::<u64>(), prop::collection::vec(any::<(u32, u64, u64)>(), 0..9))
            .prop_map(|(count, tracked)| Joint::Used { count, tracked }),
        prop::collection::vec(any::<(u32, u64)>(), 0..9).prop_map(Joint::Planned),
        prop::collection::vec((any::<u32>(), -1e9..1e9), 0..9).prop_map(Joint::Scored),
        any::<u64>().prop_map(Joint::Epoch),
    ]
}

proptest! {
    #[test]
    fn a_request_survives_the_socket(request in requests()) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let (header, rest) = bytes.split_first_chunk().unwrap();
        prop_assert_eq!(Request::length(*header), Some(rest.len()));
        prop_assert_eq!(Request::decode(*header, rest), Some(request));
    }

    #[test]
    fn any_bytes_are_a_message_or_none(header: [u8; HEADER_BYTES], head: [u8; FIRST_BYTES], rest: Vec<u8>) {
        let _ = (Request::length(header), Request::decode(header, &rest), first(head));
        let _ = (Greeting::decode(&rest), Welcome::decode(&rest), Answer::decode(header));
    }

    #[test]
    fn greetings_and_welcomes_survive_the_socket(
        samples: u64, capacity_bytes: u64, policy in 0usize..5, key: Vec<u8>, text: String, data_bytes: u64,
    ) {
        let greeting = Greeting { samples, capacity_bytes, policy: PolicyKind::ALL[policy], key };
        let bytes = greeting.encode();
        let (head, rest) = bytes.split_first_chunk().unwrap();
        prop_assert_eq!(first(*head), First::Ours(rest.len()));
        prop_assert_eq!(Greeting::decode(rest), Some(greeting));
        for welcome in [Welcome::Here { data_bytes, cgroup: text.clone() }, Welcome::Refused(text.clone())] {
            prop_assert_eq!(Welcome::decode(&welcome.encode()[FIRST_BYTES..]), Some(welcome));
        }
    }
}

#[test]
fn the_longest_list_fits_into_a_message() {
    let mut bytes = Vec::new();
    Request::Used(vec![(0, 0, 0); MOST_LISTED]).encode(&mut bytes);
    assert!(bytes.len() <= MOST_BYTES);
    bytes.clear();
    let joint = Joint::Used { count: 1, tracked: vec![(0, 0, 0); MOST_LISTED] };
    Request::Joint(joint).encode(&mut bytes);
    assert!(bytes.len() <= MOST_BYTES);
}
