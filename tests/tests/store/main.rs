//! Every store keeps the same promises: one suite for all of them, and what each has to keep alone.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod checks;
mod epochs;
mod flaky;
mod hostile;
mod postgres;
mod repeats;
mod shared;
mod sqlite;
mod support;
mod suspending;
mod tls;

use support::Kind;

macro_rules! conformance {
    ($($group:ident { $($name:ident,)* })*) => {
        mod a_memory_store { $($( #[tokio::test(flavor = "multi_thread")] async fn $name() {
            super::Kind::Memory.run(async |store| super::$group::$name(store).await).await;
        } )*)* }
        mod a_sqlite_store { $($( #[tokio::test(flavor = "multi_thread")] async fn $name() {
            super::Kind::Sqlite.run(async |store| super::$group::$name(store).await).await;
        } )*)* }
        mod a_postgres_store { $($( #[tokio::test(flavor = "multi_thread")] async fn $name() {
            super::Kind::Postgres.run(async |store| super::$group::$name(store).await).await;
        } )*)* }
    };
}

conformance! {
    checks {
        gives_a_record_back_as_it_was_put,
        takes_hostile_ids_as_keys_like_any_other,
        refuses_what_not_every_store_could_keep,
        replaces_a_record_only_for_whoever_read_it_last,
        loses_no_change_of_many_tasks,
        numbers_events_without_holes_under_many_writers,
        writes_a_batch_whole_or_not_at_all,
        gives_events_back_page_by_page_in_order,
        gives_every_session_once_page_by_page,
        keeps_a_cursor_good_while_others_write,
        filters_by_status_and_agent,
        lists_the_longest_inactive_first,
        deletes_a_session_with_its_events,
        moves_the_last_activity_only_forward,
        says_that_it_is_closed,
    }
    repeats {
        stores_an_event_once_however_often_it_is_written,
        gives_all_who_write_the_same_batch_the_same_indexes,
        gives_events_only_to_the_session_they_happened_in,
        imports_a_session_whole_or_not_at_all,
        keeps_nothing_of_an_import_that_is_dropped,
        goes_on_after_a_call_that_was_dropped_wherever_it_was,
    }
    epochs {
        refuses_events_of_whoever_had_the_session_before,
        deletes_only_what_nobody_has_written_to,
    }
    suspending {
        suspends_every_active_session_and_no_other,
        suspends_more_sessions_than_a_page_has,
        suspends_while_others_write_and_loses_nothing_of_them,
    }
    hostile {
        reads_whatever_it_took_however_deeply_it_is_nested,
        refuses_what_it_could_not_read_again,
        refuses_a_cursor_behind_an_id_that_no_session_has,
    }
    flaky {
        keeps_every_event_once_and_in_order_however_it_fails,
    }
}
