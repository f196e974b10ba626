use super::*;

const JOURNALS: [JournalState; 8] = [
    JournalState::None,
    JournalState::Empty,
    JournalState::Clean,
    JournalState::Records,
    JournalState::Damaged,
    JournalState::Abandoned,
    JournalState::OtherVersion,
    JournalState::Missing,
];
const VAULTS: [VaultState; 6] = [
    VaultState::None,
    VaultState::Empty,
    VaultState::Whole,
    VaultState::Incomplete,
    VaultState::Damaged,
    VaultState::Missing,
];
const DISKS: [DiskIdentity; 4] =
    [DiskIdentity::Same, DiskIdentity::Renamed, DiskIdentity::Changed, DiskIdentity::Unknown];
const BOTH: [bool; 2] = [false, true];

/// All combinations of inputs.
fn all() -> Vec<ServeInputs> {
    let mut all = Vec::new();
    for journal in JOURNALS {
        for pool in [PoolState::New, PoolState::Adopted] {
            for vault in VAULTS {
                for disk in DISKS {
                    for bits in 0..8 {
                        let [has_clean_mark, accept_loss, accept_disk] =
                            [0, 1, 2].map(|bit| BOTH[bits >> bit & 1]);
                        all.push(ServeInputs {
                            journal,
                            pool,
                            vault,
                            disk,
                            has_clean_mark,
                            accept_loss,
                            accept_disk,
                        });
                    }
                }
            }
        }
    }
    all
}

fn loads(inputs: ServeInputs) -> Option<LoadSource> {
    match decide(inputs) {
        Decision::Serve(source) => source,
        _ => None,
    }
}

fn is_served(inputs: ServeInputs) -> bool {
    matches!(decide(inputs), Decision::Serve(_))
}

/// Whether the vault holds data, and no clean mark voids it.
fn vault_counts(inputs: ServeInputs) -> bool {
    let is_present =
        matches!(inputs.vault, VaultState::Whole | VaultState::Incomplete | VaultState::Damaged);
    !inputs.has_clean_mark && is_present
}

/// Whether the vault that may hold the newest data is missing.
fn vault_is_missing(inputs: ServeInputs) -> bool {
    !inputs.has_clean_mark && inputs.vault == VaultState::Missing
}

/// Whether the journal that may hold the newest data is missing. A clean stop removes this record
/// for the server's own volumes, so the clean mark does not matter.
fn journal_is_missing(inputs: ServeInputs) -> bool {
    inputs.journal == JournalState::Missing
}

fn pool_counts(inputs: ServeInputs) -> bool {
    inputs.pool == PoolState::Adopted && !inputs.has_clean_mark
}

fn journal_counts(inputs: ServeInputs) -> bool {
    matches!(inputs.journal, JournalState::Records | JournalState::Damaged)
}

#[test]
fn every_combination_is_decided_by_the_rules() {
    let all = all();
    assert_eq!(all.len(), 8 * 2 * 6 * 4 * 8);
    for inputs in all {
        let decision = decide(inputs);
        let is_known = matches!(inputs.disk, DiskIdentity::Same | DiskIdentity::Renamed);
        let has_data = vault_counts(inputs) || pool_counts(inputs) || journal_counts(inputs);
        // A journal of another version may hold anything.
        let is_readable = inputs.journal != JournalState::OtherVersion;
        assert_eq!(
            decision == Decision::Refuse(ServeRefusal::OtherVersion),
            !is_readable,
            "{inputs:?}"
        );
        // Data is quarantined if, and only if, the disk is not known to be the right one.
        let is_quarantined = is_readable && has_data && !is_known && !inputs.accept_disk;
        assert_eq!(decision == Decision::Quarantine, is_quarantined, "{inputs:?}");
        // Without data and without a reason to refuse, the volume is served.
        let is_abandoned = inputs.journal == JournalState::Abandoned;
        let is_missing = vault_is_missing(inputs) || journal_is_missing(inputs);
        let is_refused = is_missing && !inputs.accept_loss;
        if is_readable && !has_data && !is_abandoned && !is_refused {
            assert_eq!(decision, Decision::Serve(None), "{inputs:?}");
        }
        // With an abandoned journal, only an adopted pool and the vault's data can be served.
        if is_abandoned && is_served(inputs) {
            assert!(pool_counts(inputs) || vault_counts(inputs), "{inputs:?}");
        }
        let is_whole = inputs.vault == VaultState::Whole && vault_counts(inputs);
        if is_abandoned && is_whole && (is_known || inputs.accept_disk) {
            assert!(is_served(inputs), "{inputs:?}");
        }
    }
}

#[test]
fn never_loads_void_data() {
    for inputs in all() {
        let is_valid = match loads(inputs) {
            Some(LoadSource::Vault) => vault_counts(inputs),
            Some(LoadSource::Pool) => pool_counts(inputs),
            Some(LoadSource::Journal) => journal_counts(inputs),
            None => true,
        };
        assert!(is_valid, "{inputs:?}");
    }
}

#[test]
fn data_in_vault_and_journal_is_refused_unless_the_pool_has_all_of_it() {
    for inputs in all().into_iter().filter(|&inputs| {
        vault_counts(inputs) && journal_counts(inputs) && decide(inputs) != Decision::Quarantine
    }) {
        let expected = match inputs.pool {
            PoolState::Adopted => Decision::Serve(Some(LoadSource::Pool)),
            PoolState::New => Decision::Refuse(ServeRefusal::VaultAndJournal),
        };
        assert_eq!(decide(inputs), expected, "{inputs:?}");
    }
}

#[test]
fn never_ignores_loss() {
    for inputs in all().into_iter().filter(|inputs| !inputs.accept_loss) {
        if pool_counts(inputs) {
            continue;
        }
        if inputs.journal == JournalState::Damaged {
            assert!(!is_served(inputs), "{inputs:?}");
        }
        let is_broken = matches!(inputs.vault, VaultState::Incomplete | VaultState::Damaged);
        if vault_counts(inputs) && is_broken {
            assert!(!is_served(inputs), "{inputs:?}");
        }
        // A journal cannot replace a missing vault, nor a vault a missing journal.
        if vault_is_missing(inputs) || journal_is_missing(inputs) {
            assert!(!is_served(inputs), "{inputs:?}");
        }
    }
}

#[test]
fn accepting_loss_or_a_disk_changes_nothing_if_not_needed() {
    for inputs in all() {
        if is_served(inputs) {
            let accepted = ServeInputs { accept_loss: true, ..inputs };
            assert_eq!(decide(accepted), decide(inputs), "{inputs:?}");
            let accepted = ServeInputs { accept_disk: true, ..inputs };
            assert_eq!(decide(accepted), decide(inputs), "{inputs:?}");
        }
    }
}

#[test]
fn serves_the_newest_available_version_of_each_block() {
    for inputs in all().into_iter().filter(|inputs| is_served(*inputs)) {
        // An adopted pool has the newest version of each block, or has destaged it. Without one,
        // only one source has any.
        let newest = if pool_counts(inputs) {
            Some(LoadSource::Pool)
        } else if vault_counts(inputs) {
            assert!(!journal_counts(inputs), "which is newer is not known: {inputs:?}");
            Some(LoadSource::Vault)
        } else {
            journal_counts(inputs).then_some(LoadSource::Journal)
        };
        assert_eq!(loads(inputs), newest, "{inputs:?}");
    }
}
