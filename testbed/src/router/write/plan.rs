//! Decides which statements are sent next, and to which shards.
//!
//! Ordered: the longest run from the front that one shard can take. Unordered: everything that goes to one shard only, one
//! group a shard, all at once; then, one by one, what goes to several.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Batch;
use super::outcome::Outcome;
use super::target::{Target, target};
use crate::router::routing::{Routing, Version};

/// What one group's statements may take together, in bytes; leaves room for the rest of the message.
const GROUP_BYTES_MAX: usize = 46_000_000;

/// Statements for one shard, in order.
#[derive(Debug)]
pub struct Group {
    /// The shard.
    pub shard: Arc<str>,
    /// What the shard is to check.
    pub version: Version,
    /// Indexes of the statements.
    pub members: Vec<usize>,
}

/// What is sent at once.
#[derive(Debug)]
pub enum Round {
    /// Each statement on one shard.
    Single(Vec<Group>),
    /// One statement on several.
    Broadcast(Vec<Group>),
}

impl Batch<'_> {
    /// The next round; statements that can't be targeted fail here. May be empty.
    pub(super) fn plan(&mut self, routing: &Routing, pending: &VecDeque<usize>, outcome: &mut Outcome) -> Round {
        match self.stops_at_errors() {
            true => self.plan_ordered(routing, pending, outcome),
            false => self.plan_unordered(routing, pending, outcome),
        }
    }

    fn plan_ordered(&mut self, routing: &Routing, pending: &VecDeque<usize>, outcome: &mut Outcome) -> Round {
        let mut run: Option<Group> = None;
        let mut bytes = 0;
        for index in pending {
            let targeted = target(self, routing, *index);
            let size = self.statements[*index].len();
            match (targeted, &mut run) {
                (Ok(Target::One(shard)), None) => run = Some(self.group(routing, shard, *index)),
                (Ok(Target::One(shard)), Some(group)) if group.shard == shard && bytes + size <= GROUP_BYTES_MAX => {
                    group.members.push(*index);
                }
                (Ok(Target::Nowhere), _) => {
                    outcome.settle(*index);
                    continue;
                }
                (Ok(Target::Several(shards)), None) => return self.broadcast(routing, shards, *index),
                (Err(error), None) => {
                    outcome.refuse(*index, &error);
                    break;
                }
                (_, Some(_)) => break,
            }
            bytes += size;
        }
        Round::Single(run.into_iter().collect())
    }

    fn plan_unordered(&mut self, routing: &Routing, pending: &VecDeque<usize>, outcome: &mut Outcome) -> Round {
        let mut groups: BTreeMap<Arc<str>, (Group, usize)> = BTreeMap::new();
        let mut several = None;
        for index in pending {
            let targeted = target(self, routing, *index);
            let size = self.statements[*index].len();
            match targeted {
                Ok(Target::One(shard)) => match groups.get_mut(&shard) {
                    Some((group, bytes)) if *bytes + size <= GROUP_BYTES_MAX => {
                        group.members.push(*index);
                        *bytes += size;
                    }
                    Some(_) => (),
                    None => {
                        let group = self.group(routing, Arc::clone(&shard), *index);
                        groups.insert(shard, (group, size));
                    }
                },
                Ok(Target::Nowhere) => outcome.settle(*index),
                Ok(Target::Several(shards)) => several = several.or(Some((shards, *index))),
                Err(error) => outcome.refuse(*index, &error),
            }
        }
        match (groups.is_empty(), several) {
            (true, Some((shards, index))) => self.broadcast(routing, shards, index),
            _ => Round::Single(groups.into_values().map(|(group, _)| group).collect()),
        }
    }

    fn group(&self, routing: &Routing, shard: Arc<str>, index: usize) -> Group {
        Group {
            version: routing.version(&shard),
            shard,
            members: vec![index],
        }
    }

    /// Outside transactions a write that several shards could have goes to every shard, unchecked: whatever moves meanwhile,
    /// none is missed.
    fn broadcast(&self, routing: &Routing, shards: Vec<Arc<str>>, index: usize) -> Round {
        let everywhere = self.operation.transaction.is_none();
        let shards = match everywhere {
            true => self.all_shards(),
            false => shards,
        };
        let group = |shard: Arc<str>| Group {
            version: if everywhere {
                Version::Ignored
            } else {
                routing.version(&shard)
            },
            shard,
            members: vec![index],
        };
        Round::Broadcast(shards.into_iter().map(group).collect())
    }

    fn all_shards(&self) -> Vec<Arc<str>> {
        let all = self.operation.router.catalog.shards.all();
        all.iter().map(|shard| shard.name.as_str().into()).collect()
    }
}
