use std::time::Duration;

use super::SessionStatus::{self, Active, Archived, Error, Suspended};
use super::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, StatusEvent, TransitionError,
    UserAction,
};
use crate::session::Timestamp;

const NO_SUPPORT: ResumeSupport =
    ResumeSupport { by_agent: false, supports_resume: false, resume_data: false };

fn every_support() -> Vec<ResumeSupport> {
    let each = [false, true];
    let mut all = Vec::new();
    for by_agent in each {
        for supports_resume in each {
            for resume_data in each {
                all.push(ResumeSupport { by_agent, supports_resume, resume_data });
            }
        }
    }
    all
}

#[test]
fn every_event_in_every_status_does_what_is_specified() {
    let forbidden = |from, to| Err(TransitionError::Forbidden { from, to });
    let table: [(StatusEvent, [Result<SessionStatus, TransitionError>; 4]); 8] = [
        (StatusEvent::AgentExited, [Ok(Active), Ok(Suspended), Ok(Archived), Ok(Error)]),
        (StatusEvent::IdleCleanup, [Ok(Active), Ok(Suspended), Ok(Archived), Ok(Error)]),
        (StatusEvent::ManualCleanup, [Ok(Active), Ok(Suspended), Ok(Archived), Ok(Error)]),
        (StatusEvent::Shutdown, [Ok(Suspended), Ok(Suspended), Ok(Archived), Ok(Error)]),
        (
            StatusEvent::Archive,
            [
                Ok(Archived),
                forbidden(Suspended, Archived),
                forbidden(Archived, Archived),
                forbidden(Error, Archived),
            ],
        ),
        (
            StatusEvent::Cancel,
            [
                Ok(Archived),
                forbidden(Suspended, Archived),
                forbidden(Archived, Archived),
                forbidden(Error, Archived),
            ],
        ),
        (
            StatusEvent::FatalError,
            [Ok(Error), forbidden(Suspended, Error), forbidden(Archived, Error), forbidden(Error, Error)],
        ),
        (
            StatusEvent::Resume(ResumeSupport::FULL),
            [forbidden(Active, Active), Ok(Active), forbidden(Archived, Active), forbidden(Error, Active)],
        ),
    ];
    for (event, expected) in table {
        for (status, expected) in SessionStatus::ALL.iter().copied().zip(expected) {
            assert_eq!(status.after(event), expected, "{status} after {event:?}");
        }
    }
}

#[test]
fn only_four_transitions_exist() {
    let allowed = [(Active, Suspended), (Active, Archived), (Active, Error), (Suspended, Active)];
    for from in SessionStatus::ALL.iter().copied() {
        for to in SessionStatus::ALL.iter().copied() {
            assert_eq!(from.can_become(to), allowed.contains(&(from, to)), "{from} to {to}");
        }
        assert_eq!(from.is_terminal(), allowed.iter().all(|(start, _)| *start != from), "{from}");
    }
}

#[test]
fn a_new_session_is_active() {
    assert_eq!(SessionStatus::default(), Active);
}

#[test]
fn resuming_needs_everything_there_is_to_need() {
    for support in every_support() {
        let missing = match (support.by_agent, support.supports_resume, support.resume_data) {
            (false, _, _) => Some(ResumeRequirement::Agent),
            (true, false, _) => Some(ResumeRequirement::Session),
            (true, true, false) => Some(ResumeRequirement::ResumeData),
            (true, true, true) => None,
        };
        assert_eq!(support.missing(), missing);
        let expected = match missing {
            Some(missing) => Err(TransitionError::NotResumable { from: Suspended, to: Active, missing }),
            None => Ok(Active),
        };
        assert_eq!(Suspended.after(StatusEvent::Resume(support)), expected);
        // In a status that can never be resumed, the status is the reason, whatever else is missing.
        for status in [Active, Archived, Error] {
            let refused = TransitionError::Forbidden { from: status, to: Active };
            assert_eq!(status.after(StatusEvent::Resume(support)), Err(refused));
        }
    }
}

#[test]
fn a_forbidden_transition_names_both_states() {
    let forbidden = Archived.after(StatusEvent::Resume(ResumeSupport::FULL)).unwrap_err();
    assert_eq!((forbidden.from(), forbidden.to()), (Archived, Active));
    assert_eq!(forbidden.to_string(), "a session cannot change from archived to active");
    let unsupported = Suspended.after(StatusEvent::Resume(NO_SUPPORT)).unwrap_err();
    assert_eq!((unsupported.from(), unsupported.to()), (Suspended, Active));
    assert_eq!(
        unsupported.to_string(),
        "a session cannot change from suspended to active: the agent cannot resume sessions"
    );
}

#[test]
fn users_may_do_what_is_specified() {
    // Send, view, cancel, archive, resume.
    let table = [
        (Active, [true, true, true, true, false]),
        (Suspended, [false, true, false, false, true]),
        (Archived, [false, true, false, false, false]),
        (Error, [false, false, false, false, false]),
    ];
    let actions =
        [UserAction::Send, UserAction::View, UserAction::Cancel, UserAction::Archive, UserAction::Resume];
    for (status, allowed) in table {
        for (action, allowed) in actions.into_iter().zip(allowed) {
            assert_eq!(status.allows(action), allowed, "{action:?} in {status}");
        }
        // What a user may do and what the state machine lets happen are the same thing.
        assert_eq!(status.allows(UserAction::Archive), status.after(StatusEvent::Archive).is_ok());
        assert_eq!(status.allows(UserAction::Cancel), status.after(StatusEvent::Cancel).is_ok());
        let resumed = status.after(StatusEvent::Resume(ResumeSupport::FULL));
        assert_eq!(status.allows(UserAction::Resume), resumed.is_ok());
    }
}

#[test]
fn lists_badges_and_inputs_show_what_is_specified() {
    // Listed, listed with archived ones shown, counted, takes input, notice.
    let table = [
        (Active, [true, true, true, true], None),
        (Suspended, [true, true, true, false], Some("may be resumable when agent supports it")),
        (Archived, [false, true, false, false], Some("Session is archived")),
        (Error, [false, false, false, false], None),
    ];
    for (status, [listed, listed_with_archived, counted, input], notice) in table {
        assert_eq!(status.is_listed(ArchivedSessions::default()), listed, "{status}");
        assert_eq!(status.is_listed(ArchivedSessions::Shown), listed_with_archived, "{status}");
        assert_eq!(status.is_counted(), counted, "{status}");
        assert_eq!(status.accepts_input(), input, "{status}");
        assert_eq!(status.notice(), notice, "{status}");
    }
}

#[test]
fn old_data_migrates_as_specified() {
    for (stored, status) in [
        ("active", Some(Active)),
        ("suspended", Some(Suspended)),
        ("archived", Some(Archived)),
        ("error", Some(Error)),
        ("completed", Some(Active)),
        ("cancelled", Some(Archived)),
        ("Active", None),
        ("", None),
        ("deleted", None),
    ] {
        assert_eq!(SessionStatus::from_stored(stored).ok(), status, "{stored}");
        let today = status.filter(|status| status.as_str() == stored);
        assert_eq!(stored.parse::<SessionStatus>().ok(), today, "{stored}");
        let json = serde_json::Value::from(stored);
        assert_eq!(serde_json::from_value::<SessionStatus>(json).ok(), today, "{stored}");
    }
    for status in SessionStatus::ALL.iter().copied() {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
    }
    assert_eq!(
        SessionStatus::from_stored("gone").unwrap_err().to_string(),
        "\"gone\" is not a session status"
    );
}

#[test]
fn every_session_is_kept_as_long_as_specified() {
    let policy = RetentionPolicy::default();
    let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
    let last_active = Timestamp::from_millis(1_794_790_579_671);
    let tick = Duration::from_millis(1);
    for support in every_support() {
        let suspended = if support.supports_resume { day * 30 } else { day * 7 };
        for (status, period) in
            [(Active, None), (Suspended, Some(suspended)), (Archived, None), (Error, Some(hour * 24))]
        {
            assert_eq!(policy.period(status, support), period, "{status}");
            let at = |span: Duration| last_active.saturating_add(span);
            let expired = |now| policy.is_expired(status, support, last_active, now);
            match period {
                Some(period) => {
                    assert!(!expired(at(period)), "{status} goes a moment too early");
                    assert!(expired(at(period + tick)), "{status} stays");
                    assert_eq!(policy.expires_at(status, support, last_active), Some(at(period)));
                }
                None => assert!(!expired(Timestamp::from_millis(u64::MAX)), "{status} goes"),
            }
            // A session of the future, by a wrong clock, is retained.
            assert!(!policy.is_expired(status, support, last_active, Timestamp::from_millis(0)));
        }
    }
}

#[test]
fn an_idle_agent_goes_and_its_session_stays() {
    let policy = RetentionPolicy::default();
    assert_eq!(policy.idle_check, Duration::from_secs(5 * 60));
    assert_eq!(policy.expiry_check, Duration::from_secs(24 * 60 * 60));
    let start = Timestamp::from_millis(1_000);
    let limit = start.saturating_add(Duration::from_secs(30 * 60));
    let before = Timestamp::from_millis(limit.as_millis() - 1);
    assert!(!policy.is_agent_idle(Active, start, before));
    assert!(policy.is_agent_idle(Active, start, limit));
    assert_eq!(Active.after(StatusEvent::IdleCleanup), Ok(Active));
    for status in [Suspended, Archived, Error] {
        assert!(!policy.is_agent_idle(status, start, Timestamp::from_millis(u64::MAX)), "{status}");
    }
    assert!(!policy.is_agent_idle(Active, start, Timestamp::from_millis(0)));
}

#[test]
fn the_idle_timeout_comes_from_a_number_of_minutes() {
    for (text, minutes) in [
        (None, 30),
        (Some(""), 30),
        (Some("45"), 45),
        (Some(" 1 "), 1),
        (Some("0"), 30),
        (Some("-5"), 30),
        (Some("soon"), 30),
        (Some("1.5"), 30),
    ] {
        let policy = RetentionPolicy::default().with_idle_minutes(text);
        assert_eq!(policy.idle, Duration::from_secs(minutes * 60), "{text:?}");
        assert_eq!(
            RetentionPolicy { idle: RetentionPolicy::default().idle, ..policy },
            RetentionPolicy::default()
        );
    }
    let longest = RetentionPolicy::default().with_idle_minutes(Some("18446744073709551615"));
    assert_eq!(longest.idle, Duration::from_secs(u64::MAX));
    assert_eq!(RetentionPolicy::IDLE_TIMEOUT_VARIABLE, "AGENT_SESSION_IDLE_TIMEOUT");
}
