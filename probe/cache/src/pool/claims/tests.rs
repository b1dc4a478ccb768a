use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

proptest! {
    #[test]
    fn each_claim_is_held_by_one_and_everybody_is_answered_once(
        steps in prop::collection::vec((0u8..6, 0u32..3, 0u64..4, 0u32..200), 1..150),
    ) {
        let mut claims = Claims::default();
        let (mut now_ms, mut request) = (0, 0);
        // By sample, who reads it; and who has not been answered.
        let mut holders: HashMap<u32, Who> = HashMap::new();
        let mut waiting: HashSet<(u32, Who)> = HashSet::new();
        for (what, id, client, limit_ms) in steps {
            let mut answers = Answers::new();
            match what {
                0..3 => {
                    request += 1;
                    waiting.insert((id, (client, request)));
                    claims.claim(id, (client, request), now_ms, limit_ms, &mut answers);
                }
                3 => {
                    if let Some(who) = holders.remove(&id) {
                        claims.give_up(id, who, now_ms, &mut answers);
                    }
                }
                4 => {
                    holders.remove(&id);
                    claims.settle(id, &mut answers);
                    prop_assert!(answers.iter().all(|(_, answer)| *answer == Answer::No));
                }
                _ => {
                    waiting.retain(|(_, (other, _))| *other != client);
                    holders.retain(|_, (other, _)| *other != client);
                    claims.gone(client, now_ms, &mut answers);
                }
            }
            now_ms += 20;
            claims.expire(now_ms, &mut answers);
            for (who, answer) in answers {
                let found = waiting.iter().find(|(_, other)| *other == who).copied();
                let Some((id, _)) = found else { return Err(TestCaseError::fail("answered twice")) };
                waiting.remove(&(id, who));
                if answer == Answer::Yes {
                    prop_assert_eq!(holders.insert(id, who), None, "two hold one");
                }
            }
            for (id, _) in &waiting {
                prop_assert!(holders.contains_key(id), "somebody waits for nobody");
            }
        }
        let mut answers = Answers::new();
        claims.expire(now_ms + 1000, &mut answers);
        prop_assert_eq!(answers.len(), waiting.len(), "somebody waits for ever");
        for id in 0..3 {
            claims.settle(id, &mut answers);
        }
        (0..4).for_each(|client| claims.gone(client, now_ms, &mut answers));
        prop_assert!(claims.by_id.is_empty() && claims.patience.is_empty() && claims.of_client.is_empty());
    }
}

#[test]
fn a_claim_that_nobody_answers_for_is_not_waited_for_for_ever() {
    let (mut claims, mut answers) = (Claims::default(), Answers::new());
    claims.claim(1, (1, 1), 0, 0, &mut answers);
    claims.claim(1, (2, 1), LEASE_MS, 10, &mut answers);
    assert_eq!(answers, [((1, 1), Answer::Yes), ((2, 1), Answer::Yes)]);
    assert!(claims.is_of_another(1, (1, 1)));
}

#[test]
fn a_client_with_very_many_claims_costs_others_nothing() {
    let (mut claims, mut answers) = (Claims::default(), Answers::new());
    (0..200_000).for_each(|id| claims.claim(id, (1, id), 0, 0, &mut answers));
    answers.clear();
    // What others ask, as often again: looking through all claims each time would take minutes.
    for id in 0..200_000 {
        claims.claim(id, (2, id), 0, 10, &mut answers);
        assert_eq!(claims.expire(9, &mut answers), Some(10));
        claims.give_up(id, (2, id), 9, &mut answers);
        claims.gone(3, 9, &mut answers);
    }
    assert!(answers.is_empty() && claims.patience.is_empty());
}
