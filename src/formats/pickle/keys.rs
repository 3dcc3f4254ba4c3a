//! Keys that a dict is given twice.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::json::sequence_of_pairs;
use super::{Graph, Id, Node};

/// Dicts up to this size are compared pair by pair.
const FEW: usize = 8;

/// What tells keys apart: strings that are not long, and integers. Other keys count as different.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Key<'g> {
    Text(&'g [u8]),
    Int(i64),
}

impl<'g> Key<'g> {
    fn of(graph: &'g Graph, id: Id) -> Option<Self> {
        match graph.node(id) {
            Node::Text(_) => graph.short(id).map(Self::Text),
            Node::Int(value) => Some(Self::Int(*value)),
            _ => None,
        }
    }
}

/// Makes every dict of a graph, and every list of which a call makes one, what Python would keep of it, once, so that nothing that looks at it later has to.
pub(super) fn keep_last(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Some(Node::Dict(pairs)) = graph.nodes.get(index) else { continue };
        let Some(kept) = last_of_each(graph, pairs) else { continue };
        if let Some(Node::Dict(pairs)) = graph.nodes.get_mut(index) {
            *pairs = kept;
        }
    }
    for index in 0..graph.objects.len() {
        let Some(kept) = graph.objects.get(index).and_then(|object| last_of_each(graph, &object.pairs)) else { continue };
        if let Some(object) = graph.objects.get_mut(index) {
            object.pairs = kept;
        }
    }
    for id in 0..Id::try_from(graph.nodes.len()).unwrap_or(Id::MAX) {
        let Some(given) = sequence_of_pairs(graph, id).filter(|given| !graph.given.contains_key(given)) else { continue };
        let items = graph.sequence(given).unwrap_or_default();
        let pairs: Vec<(Id, Id)> =
            items.iter().filter_map(|pair| if let [key, value] = graph.sequence(*pair)? { Some((*key, *value)) } else { None }).collect();
        let pairs = last_of_each(graph, &pairs).unwrap_or(pairs);
        graph.given.insert(given, pairs);
    }
}

/// Pairs as Python keeps them: of a key that is set twice, the first place and the last value. `None` if there is no such key.
fn last_of_each(graph: &Graph, pairs: &[(Id, Id)]) -> Option<Vec<(Id, Id)>> {
    let keys = || pairs.iter().map(|(key, _)| Key::of(graph, *key));
    if pairs.len() <= FEW {
        let twice = keys().enumerate().any(|(i, key)| key.is_some() && keys().take(i).any(|before| before == key));
        return twice.then(|| kept(graph, pairs, &|_| true));
    }
    // Eight bytes a key tell whether any occurs twice; few dicts go on from here.
    let state = RandomState::new();
    let mut hashes: Vec<u64> = keys().flatten().map(|key| state.hash_one(key)).collect();
    hashes.sort_unstable();
    let repeated: HashSet<u64> = hashes.windows(2).filter_map(|pair| if let [a, b] = pair { (a == b).then_some(*a) } else { None }).collect();
    (!repeated.is_empty()).then(|| kept(graph, pairs, &|key| repeated.contains(&state.hash_one(key))))
}

/// The pairs that are left when keys that `may_repeat` are looked at.
fn kept(graph: &Graph, pairs: &[(Id, Id)], may_repeat: &dyn Fn(Key<'_>) -> bool) -> Vec<(Id, Id)> {
    let mut places = HashMap::new();
    let mut kept: Vec<(Id, Id)> = Vec::new();
    for (key, value) in pairs {
        let place = Key::of(graph, *key).filter(|key| may_repeat(*key)).map(|key| *places.entry(key).or_insert(kept.len()));
        match place.and_then(|place| kept.get_mut(place)) {
            Some(pair) => pair.1 = *value,
            None => kept.push((*key, *value)),
        }
    }
    kept
}
