//! Whether a share of the pool for each volume would give more hits than one policy over all of it.
//!
//! Several volumes with different loads use one cache. Its lines are divided in several ways: by
//! one eviction policy over the lines of all volumes, as in the engine; or by a share for each
//! volume, with a policy of its own. A volume takes a line from the volume that exceeds its share
//! most. The shares are equal, or chosen for the most hits by the live miss-ratio curves of all
//! volumes, or the best fixed ones, found by trying. The last are a bound for all fixed shares; no
//! server can know them in advance.
//!
//! Every line can be evicted at any time, and an access is one line. A policy for each volume would
//! take as much memory as one for the whole pool; this comparison ignores that.

use crate::harness::dice::Dice;
use crate::policies::PolicyKind;
use crate::trace::Trace;
use forebay_policy::{
    CurveConfig, CurveEstimator, Division, Eviction, Hint, Lines, Slot, VolumeShare,
};
use forebay_types::LINE_BYTES;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The time between two decisions on the shares by the curves, in accesses per line of the cache.
const DECISION_PERIOD: usize = 2;
/// The unit of shares: the cache divided by this.
const UNITS: usize = 32;

/// The load of one volume: which of its lines it accesses.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// A loop over this many lines, in order.
    Loop(u32),
    /// New lines only.
    Scan,
    /// This many lines, all equally likely.
    Uniform(u32),
    /// This many lines by Zipf's law, with an exponent in hundredths.
    Zipf(u32, u32),
    /// This many lines, all equally likely, and as many others after half of the run.
    Moves(u32),
}

/// A volume of a load.
#[derive(Clone, Copy, Debug)]
pub struct VolumeLoad {
    /// Its accesses.
    pub pattern: Pattern,
    /// How often it is accessed, in relation to the other volumes.
    pub weight: u32,
}

/// A load of several volumes.
#[derive(Clone, Debug)]
pub struct Load {
    /// Its name in tables.
    pub name: &'static str,
    /// Its volumes.
    pub volumes: Vec<VolumeLoad>,
}

/// Accesses of several volumes: the volume of each, and the line in it.
pub struct Accesses {
    volumes: usize,
    list: Vec<(u8, u32)>,
}

/// How the cache is divided.
#[derive(Clone, Debug)]
enum Way {
    /// By one policy over all lines.
    Common(PolicyKind),
    /// By shares, in units of the cache.
    Fixed(Vec<usize>),
    /// By shares that follow the miss-ratio curves, with a policy for each volume.
    Curves,
    /// By the same shares, with one policy, which evicts lines of volumes that exceed theirs.
    Biased,
}

/// The hit ratios of one load, from 0 to 1.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The name of the load.
    pub name: String,
    /// With LRU over all lines.
    pub lru: f64,
    /// With weir over all lines, as in the engine.
    pub common: f64,
    /// With equal shares.
    pub equal: f64,
    /// With shares by the curves.
    pub curves: f64,
    /// With shares by the curves, and one policy.
    pub biased: f64,
    /// With the best fixed shares.
    pub best: f64,
}

/// The loads that are compared, for a cache of `lines` lines.
pub fn loads(lines: u32) -> Vec<Load> {
    use Pattern::{Loop, Moves, Scan, Uniform, Zipf};
    let load = |name, volumes: &[(Pattern, u32)]| {
        let volume = |&(pattern, weight)| VolumeLoad { pattern, weight };
        Load { name, volumes: volumes.iter().map(volume).collect() }
    };
    vec![
        load("loop of 2x beside a small hot set", &[(Loop(2 * lines), 1), (Uniform(lines / 4), 1)]),
        load(
            "the same, the loop 8 times as fast",
            &[(Loop(2 * lines), 8), (Uniform(lines / 4), 1)],
        ),
        load("scan beside a hot set of half", &[(Scan, 1), (Uniform(lines / 2), 1)]),
        load("the same, the scan 8 times as fast", &[(Scan, 8), (Uniform(lines / 2), 1)]),
        load("two Zipf volumes of 4x", &[(Zipf(4 * lines, 90), 1), (Zipf(4 * lines, 90), 1)]),
        load(
            "the same, one 8 times as fast",
            &[(Zipf(4 * lines, 90), 8), (Zipf(4 * lines, 90), 1)],
        ),
        load("Zipf of 8x beside uniform of 1x", &[(Zipf(8 * lines, 100), 1), (Uniform(lines), 1)]),
        load("two loops of three quarters", &[(Loop(lines / 4 * 3), 1), (Loop(lines / 4 * 3), 1)]),
        load(
            "loop of 2x, Zipf of 4x, hot set",
            &[(Loop(2 * lines), 4), (Zipf(4 * lines, 90), 2), (Uniform(lines / 8), 1)],
        ),
        load(
            "hot set that moves beside Zipf of 4x",
            &[(Moves(lines / 2), 1), (Zipf(4 * lines, 90), 1)],
        ),
        load(
            "uniform of 4x, fast, beside a hot set",
            &[(Uniform(4 * lines), 8), (Uniform(lines / 4), 1)],
        ),
    ]
}

/// Zipf's law over `count` lines: the cumulated weights.
struct ZipfLaw(Vec<f64>);

impl ZipfLaw {
    fn new(count: u32, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=count).map(|rank| {
            sum += f64::from(rank).powf(-exponent);
            sum
        });
        Self(weights.collect())
    }

    fn draw(&self, dice: &mut Dice) -> u32 {
        let all = self.0.last().copied().unwrap_or(1.0);
        let at = dice.below(1 << 32) as f64 / (1u64 << 32) as f64 * all;
        self.0.partition_point(|&sum| sum <= at).min(self.0.len() - 1) as u32
    }
}

impl Load {
    /// Draws `count` accesses of the load, the same for the same seed.
    pub fn draw(&self, count: usize, seed: u64) -> Accesses {
        let mut dice = Dice::new(seed);
        let law = |volume: &VolumeLoad| match volume.pattern {
            Pattern::Zipf(lines, hundredths) => ZipfLaw::new(lines, f64::from(hundredths) / 100.0),
            _ => ZipfLaw(Vec::new()),
        };
        let laws: Vec<ZipfLaw> = self.volumes.iter().map(law).collect();
        let weights: Vec<u32> = self.volumes.iter().map(|volume| volume.weight).collect();
        let mut next = vec![0u32; self.volumes.len()];
        let access = |n: usize| {
            let volume = dice.weighted(&weights);
            let in_order = next[volume];
            next[volume] += 1;
            let line = match self.volumes[volume].pattern {
                Pattern::Loop(lines) => in_order % lines,
                Pattern::Scan => in_order,
                Pattern::Uniform(lines) => dice.below(u64::from(lines)) as u32,
                Pattern::Zipf(..) => laws[volume].draw(&mut dice),
                Pattern::Moves(lines) => {
                    let first = if n < count / 2 { 0 } else { lines };
                    first + dice.below(u64::from(lines)) as u32
                }
            };
            (volume as u8, line)
        };
        Accesses { volumes: self.volumes.len(), list: (0..count).map(access).collect() }
    }
}

/// The lines of one policy: the key in each of its slots.
struct Keys(Vec<u64>);

impl Lines for Keys {
    fn is_evictable(&self, _: Slot) -> bool {
        true
    }

    fn key(&self, slot: Slot) -> u64 {
        self.0[slot as usize]
    }
}

/// A policy with its lines.
struct Part {
    policy: Box<dyn Eviction>,
    keys: Keys,
    free: Vec<Slot>,
    slots: HashMap<u64, Slot>,
}

impl Part {
    fn new(kind: PolicyKind, lines: usize) -> Self {
        let free = (0..lines as Slot).rev().collect();
        Self { policy: kind.build(lines), keys: Keys(vec![0; lines]), free, slots: HashMap::new() }
    }

    fn resident(&self) -> usize {
        self.slots.len()
    }

    fn hit(&mut self, key: u64) -> bool {
        let slot = self.slots.get(&key).copied();
        slot.into_iter().for_each(|slot| self.policy.on_hit(slot));
        slot.is_some()
    }

    fn evict(&mut self, incoming: u64) {
        let slot = self.policy.evict(incoming, Hint::Normal, &self.keys);
        self.free(slot.expect("every line can be evicted"));
    }

    /// Frees the slot of an evicted line.
    fn free(&mut self, slot: Slot) {
        self.slots.remove(&self.keys.0[slot as usize]);
        self.free.push(slot);
    }

    fn insert(&mut self, key: u64) -> Slot {
        let slot = self.free.pop().expect("a line was evicted");
        self.keys.0[slot as usize] = key;
        self.slots.insert(key, slot);
        self.policy.on_insert(slot, key, Hint::Normal);
        slot
    }
}

/// The key of a line of a volume.
fn key_of(volume: u8, line: u32) -> u64 {
    let mut key = (u64::from(volume) << 32 | u64::from(line)).wrapping_add(1);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        key = (key ^ (key >> 31)).wrapping_mul(factor);
    }
    key ^ (key >> 29)
}

/// A cache of several volumes.
trait Cache {
    /// Sets the shares, in lines.
    fn set(&mut self, targets: Vec<usize>);

    /// Accesses a line of a volume. Returns whether it was in the cache.
    fn access(&mut self, volume: usize, key: u64) -> bool;
}

/// A cache with a share for each volume, and a policy for each.
struct Shared {
    lines: usize,
    parts: Vec<Part>,
    targets: Vec<usize>,
}

impl Shared {
    fn new(volumes: usize, lines: usize) -> Self {
        let parts = (0..volumes).map(|_| Part::new(PolicyKind::Weir, lines)).collect();
        Self { lines, parts, targets: vec![lines / volumes; volumes] }
    }
}

impl Cache for Shared {
    fn set(&mut self, targets: Vec<usize>) {
        for (part, &target) in self.parts.iter_mut().zip(&targets) {
            part.policy.set_capacity(target.max(1));
        }
        self.targets = targets;
    }

    fn access(&mut self, volume: usize, key: u64) -> bool {
        if self.parts[volume].hit(key) {
            return true;
        }
        let used: usize = self.parts.iter().map(Part::resident).sum();
        if used >= self.lines {
            // The volume that is accessed is counted with its new line.
            let excess = |at: usize| {
                let resident = self.parts[at].resident();
                let wanted = resident + usize::from(at == volume);
                (resident > 0).then(|| wanted as i64 - self.targets[at] as i64)
            };
            let from = (0..self.parts.len()).max_by_key(|&at| excess(at));
            let from = from.expect("there are volumes");
            self.parts[from].evict(key);
        }
        self.parts[volume].insert(key);
        false
    }
}

/// A cache with one policy. Once shares are set, it evicts lines of volumes that exceed their share
/// first.
struct Whole {
    lines: usize,
    part: Part,
    volumes: Vec<u8>,
    resident: Vec<usize>,
    targets: Option<Vec<usize>>,
}

/// The lines of the cache; only those of volumes that exceed their share can be evicted.
struct Above<'a> {
    keys: &'a Keys,
    volumes: &'a [u8],
    is_above: &'a [bool],
}

impl Lines for Above<'_> {
    fn is_evictable(&self, slot: Slot) -> bool {
        self.is_above[usize::from(self.volumes[slot as usize])]
    }

    fn key(&self, slot: Slot) -> u64 {
        self.keys.key(slot)
    }
}

impl Whole {
    fn new(kind: PolicyKind, volumes: usize, lines: usize) -> Self {
        let (part, resident) = (Part::new(kind, lines), vec![0; volumes]);
        Self { lines, part, volumes: vec![0; lines], resident, targets: None }
    }

    /// Evicts a line in favour of one of `volume`.
    fn evict(&mut self, volume: usize, key: u64) {
        let Part { policy, keys, .. } = &mut self.part;
        let preferred = self.targets.as_ref().and_then(|targets| {
            let wanted = |at: usize| self.resident[at] + usize::from(at == volume);
            let is_above: Vec<bool> =
                (0..targets.len()).map(|at| wanted(at) > targets[at]).collect();
            let above = Above { keys, volumes: &self.volumes, is_above: &is_above };
            policy.evict(key, Hint::Normal, &above)
        });
        let slot = preferred.or_else(|| policy.evict(key, Hint::Normal, keys));
        let slot = slot.expect("every line can be evicted");
        self.part.free(slot);
        self.resident[usize::from(self.volumes[slot as usize])] -= 1;
    }
}

impl Cache for Whole {
    fn set(&mut self, targets: Vec<usize>) {
        self.targets = Some(targets);
    }

    fn access(&mut self, volume: usize, key: u64) -> bool {
        if self.part.hit(key) {
            return true;
        }
        if self.part.resident() >= self.lines {
            self.evict(volume, key);
        }
        let slot = self.part.insert(key);
        self.volumes[slot as usize] = volume as u8;
        self.resident[volume] += 1;
        false
    }
}

impl Accesses {
    /// The accesses of recorded traces, each as one volume. They are interleaved so that all end at
    /// the same time, and each is cut after `count_max` accesses.
    ///
    /// # Panics
    /// If a trace touches 2^32 blocks or more.
    pub fn of_traces(traces: &[&Trace], count_max: usize) -> Self {
        let blocks = |trace: &&Trace| {
            let mut numbers = HashMap::new();
            let blocks = trace.requests.iter().flat_map(|request| {
                let volume = request.volume;
                request.blocks().map(move |block| (volume, block))
            });
            let number = |block: (u32, u64)| {
                let next = u32::try_from(numbers.len()).expect("a trace touches less than 16 TiB");
                *numbers.entry(block).or_insert(next)
            };
            blocks.take(count_max).map(number).collect::<Vec<u32>>()
        };
        let parts: Vec<Vec<u32>> = traces.iter().map(blocks).collect();
        let mut list = Vec::new();
        for (volume, part) in parts.iter().enumerate() {
            let at = |n: usize| n as f64 / part.len() as f64;
            list.extend(part.iter().enumerate().map(|(n, &line)| (at(n), volume as u8, line)));
        }
        list.sort_by(|one, other| one.0.total_cmp(&other.0));
        let list = list.into_iter().map(|(_, volume, line)| (volume, line)).collect();
        Self { volumes: traces.len(), list }
    }

    /// The distinct lines.
    pub fn distinct(&self) -> usize {
        self.list.iter().collect::<HashSet<_>>().len()
    }

    /// The hit ratio of the last two thirds of the accesses.
    fn hit_ratio(&self, lines: usize, way: &Way) -> f64 {
        let mut cache: Box<dyn Cache> = match way {
            Way::Common(kind) => Box::new(Whole::new(*kind, self.volumes, lines)),
            Way::Biased => Box::new(Whole::new(PolicyKind::Weir, self.volumes, lines)),
            Way::Fixed(_) | Way::Curves => Box::new(Shared::new(self.volumes, lines)),
        };
        if let Way::Fixed(units) = way {
            cache.set(units.iter().map(|units| units * lines / UNITS).collect());
        }
        let follows_curves = matches!(way, Way::Curves | Way::Biased);
        let config = CurveConfig { rate_max: 0.25, ..CurveConfig::for_shard(lines) };
        let curve = |_| {
            let mut estimator = CurveEstimator::new(config);
            estimator.set_limit(1 << 20);
            estimator
        };
        let mut curves: Vec<_> = (0..self.volumes).map(curve).collect();
        let (first, mut hits) = (self.list.len() / 3, 0);
        for (n, &(volume, line)) in self.list.iter().enumerate() {
            let (at, key) = (usize::from(volume), key_of(volume, line));
            hits += usize::from(cache.access(at, key) && n >= first);
            if !follows_curves {
                continue;
            }
            curves[at].record(key);
            if (n + 1).is_multiple_of(DECISION_PERIOD * lines) {
                cache.set(self.targets(&curves, lines));
                curves.iter_mut().for_each(|curve| curve.decay(0.8));
            }
        }
        hits as f64 / (self.list.len() - first) as f64
    }

    /// The shares by the curves in lines; equal ones while too few accesses are known.
    fn targets(&self, curves: &[CurveEstimator], lines: usize) -> Vec<usize> {
        let share = |curve| VolumeShare { curve, cached_bytes: 0 };
        let known: Vec<_> = curves.iter().filter_map(|it| it.curve().map(share)).collect();
        let division = Division::by_curves(&known, lines as u64 * LINE_BYTES);
        match division.filter(|_| known.len() == self.volumes) {
            Some(division) => {
                division.shares_bytes.iter().map(|bytes| (bytes / LINE_BYTES) as usize).collect()
            }
            None => vec![lines / self.volumes; self.volumes],
        }
    }

    /// Compares the divisions of a cache of `lines` lines.
    pub fn compare(&self, name: &str, lines: usize) -> Comparison {
        let ratio = |way: &Way| self.hit_ratio(lines, way);
        let equal = vec![UNITS / self.volumes; self.volumes];
        let best = splits(self.volumes).into_iter().map(|units| ratio(&Way::Fixed(units)));
        Comparison {
            name: name.to_owned(),
            lru: ratio(&Way::Common(PolicyKind::Lru)),
            common: ratio(&Way::Common(PolicyKind::Weir)),
            equal: ratio(&Way::Fixed(equal)),
            curves: ratio(&Way::Curves),
            biased: ratio(&Way::Biased),
            best: best.fold(0.0, f64::max),
        }
    }
}

/// The fixed shares to try, in units: all multiples of a sixteenth of the cache for two volumes, of
/// an eighth for more.
fn splits(volumes: usize) -> Vec<Vec<usize>> {
    let step = if volumes == 2 { UNITS / 16 } else { UNITS / 8 };
    let mut splits = vec![Vec::new()];
    for at in 0..volumes {
        splits = splits
            .into_iter()
            .flat_map(|split: Vec<usize>| {
                let left = UNITS - split.iter().sum::<usize>();
                let choices: Vec<usize> = match at + 1 == volumes {
                    true => vec![left],
                    false => (0..=left).step_by(step).collect(),
                };
                choices.into_iter().map(move |units| [&split[..], &[units]].concat())
            })
            .collect();
    }
    splits
}

impl Comparison {
    /// The ratios in the order of the columns.
    pub const fn ratios(&self) -> [f64; 6] {
        [self.lru, self.common, self.equal, self.curves, self.biased, self.best]
    }
}

impl fmt::Display for Comparison {
    /// A row of a Markdown table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} |", self.name)?;
        self.ratios().into_iter().try_for_each(|ratio| write!(f, " {ratio:.3} |"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decision not to divide the pool rests on these figures. If they change, see
    /// `docs/decisions/0032-one-eviction-for-all-volumes.md`.
    #[test]
    fn shares_bring_little_and_only_with_a_policy_for_each_volume() {
        const LINES: u32 = 1_024;
        let (mut common, mut curves, mut biased) = (0.0, 0.0, 0.0);
        let loads = loads(LINES);
        for load in &loads {
            let accesses = load.draw(24 * LINES as usize, 1);
            let ratio = |way| accesses.hit_ratio(LINES as usize, &way);
            common += ratio(Way::Common(PolicyKind::Weir)) / loads.len() as f64;
            curves += ratio(Way::Curves) / loads.len() as f64;
            biased += ratio(Way::Biased) / loads.len() as f64;
        }
        let found = format!("common {common:.4}, by curves {curves:.4}, one policy {biased:.4}");
        assert!(curves < common + 0.03, "{found}");
        assert!(biased < common + 0.005, "{found}");
        assert!(curves > biased, "{found}");
    }

    #[test]
    fn every_split_uses_the_whole_cache() {
        assert_eq!((splits(2).len(), splits(3).len()), (17, 45));
        for split in splits(2).into_iter().chain(splits(3)) {
            assert_eq!(split.iter().sum::<usize>(), UNITS);
        }
    }
}
