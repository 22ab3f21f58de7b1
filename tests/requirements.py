"""What the tools promise, where that was decided, and the test that shows it.

`source` names a section of the design: architecture (packaging, memory, mcp_server, surfaces) or the
protocol. `test` is a file under `tests/` and a function in it; `test_requirements.py` checks both ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One promise."""

    behaviour: str
    source: str
    test: str


_TOOLS = "mcp_server/test_tools.py::"
_STDIO = "mcp_server/test_stdio.py::"
_HTTP = "mcp_server/test_http.py::"
_START = "mcp_server/test_start.py::"
_NPU = "mcp_server/test_npu_tools.py::"
_JOBS = "npu_tools/test_jobs.py::"

REQUIREMENTS = tuple(
    Requirement(*row)
    for row in (
        ("the tools are explain_error, search, get, contribute_lesson, report_outcome, check, compile, run, job, gate, deployment, harvest", "surfaces", _TOOLS + "test_the_tools_are_listed_in_the_same_order_every_time"),
        ("every tool has annotations, schemas and descriptions", "mcp_server", _TOOLS + "test_every_tool_says_what_it_does_and_what_it_changes"),
        ("the list of tools is short", "mcp_server", _TOOLS + "test_the_list_of_tools_costs_an_agent_little"),
        ("server instructions say when to call what", "mcp_server", _TOOLS + "test_instructions_say_when_to_call_what"),
        ("answers are typed", "mcp_server", _TOOLS + "test_structured_answers_fit_their_schema_and_their_text"),
        ("a default answer is about 1,500 tokens", "mcp_server", _TOOLS + "test_answers_are_bounded_for_any_shipped_lesson"),
        ("a list of hits and a record are bounded", "mcp_server", _TOOLS + "test_a_search_and_a_record_are_bounded_too"),
        ("no contributed record escapes the bound", "mcp_server", _TOOLS + "test_a_record_made_of_line_breaks_is_bounded"),
        ("detail=full shows more", "mcp_server", _TOOLS + "test_full_detail_shows_more"),
        ("the best lesson is shown fully enough to act on, with what matched", "memory", _TOOLS + "test_a_concise_answer_is_enough_to_act_on"),
        ("limit is the number of lessons", "surfaces", _TOOLS + "test_the_number_of_lessons_is_the_one_asked_for"),
        ("filters by device, kind and status", "memory", _TOOLS + "test_filters_leave_out_what_does_not_fit"),
        ("an unknown device is refused with the known ones", "mcp_server", _TOOLS + "test_an_unknown_device_is_refused_with_the_ones_there_are"),
        ("no match: signature, nearest records marked as such, next step", "memory", _TOOLS + "test_no_match_says_what_was_searched_for_and_what_to_do"),
        ("an answer emptied by filters says so", "mcp_server", _TOOLS + "test_filters_that_leave_nothing_are_named_in_the_next_step"),
        ("an empty question is told what to paste", "mcp_server", _TOOLS + "test_text_without_words_asks_for_a_log"),
        ("errors for the model are in our words and say the next step", "mcp_server", _TOOLS + "test_errors_of_the_memory_reach_the_model_in_our_words"),
        ("a broken installation is said in words", "mcp_server", _TOOLS + "test_a_missing_corpus_is_an_error_in_words"),
        ("unreviewed text is returned as quoted data", "memory", _TOOLS + "test_unreviewed_text_is_quoted_wherever_it_appears"),
        ("reviewed text is not", "memory", _TOOLS + "test_reviewed_text_is_not_quoted"),
        ("instructions inside stored text are flagged", "memory", _TOOLS + "test_text_that_gives_orders_is_flagged_when_stored_and_when_shown"),
        ("secrets are redacted on write and the reply says what was", "memory", _TOOLS + "test_what_was_taken_out_is_said"),
        ("repeats merge and count; one client and day is one vote", "memory", _TOOLS + "test_a_contributed_lesson_is_found_repeated_and_voted_on"),
        ("records are resources", "mcp_server", _TOOLS + "test_records_and_the_index_are_resources"),
        ("a resource name reaches no file", "mcp_server", _TOOLS + "test_a_resource_that_is_no_record_is_refused"),
        ("prompts for looking up and writing", "mcp_server", _TOOLS + "test_prompts_look_up_and_write"),
        ("a wrong prompt request says what is missing", "mcp_server", _TOOLS + "test_a_wrong_prompt_request_is_told_what_is_missing"),
        ("skills are resources with digests", "surfaces", _TOOLS + "test_skills_are_served_as_resources_with_digests"),
        ("an unknown skill names those there are", "mcp_server", _TOOLS + "test_an_unknown_skill_names_those_there_are"),
        ("skills are prompts", "surfaces", _TOOLS + "test_a_skill_is_a_prompt"),
        ("skills are found without resources, by the tools", "mcp_server", _TOOLS + "test_an_agent_without_resources_finds_a_skill_by_search_and_get"),
        ("both protocol eras on stdio: with a handshake", "mcp_server", _STDIO + "test_a_client_with_a_handshake_gets_the_version_it_asked_for"),
        ("both protocol eras on stdio: stateless", "mcp_server", _STDIO + "test_a_stateless_client_needs_no_handshake"),
        ("capabilities that are declared are kept", "protocol", _STDIO + "test_no_announcements_are_promised_in_either_era"),
        ("stdout belongs to the protocol while modules load", "mcp_server", _STDIO + "test_nothing_but_protocol_reaches_standard_output"),
        ("stdout belongs to the protocol during a call", "mcp_server", _STDIO + "test_a_child_process_and_a_print_during_a_call_stay_off_the_wire"),
        ("a line that is no message is answered", "protocol", _STDIO + "test_a_line_that_is_no_message_is_answered"),
        ("half a surrogate pair does not lose the question", "mcp_server", _STDIO + "test_half_a_surrogate_pair_is_read_as_a_replacement_character"),
        ("a 50 MB paste is answered", "mcp_server", _STDIO + "test_a_paste_of_fifty_megabytes_is_answered"),
        ("a larger one is refused with advice", "mcp_server", _STDIO + "test_a_larger_paste_is_refused_with_advice"),
        ("a bad call names what to change", "mcp_server", _STDIO + "test_a_bad_call_is_an_error_that_names_what_to_change"),
        ("the server ends with its client", "protocol", _STDIO + "test_a_closed_standard_input_ends_the_server_with_zero"),
        ("answering takes no network", "memory", _STDIO + "test_answering_takes_no_network"),
        ("both protocol eras over HTTP", "mcp_server", _HTTP + "test_loopback_without_a_token_serves_both_eras"),
        ("HTTP asks for the token that is set", "mcp_server", _HTTP + "test_without_the_one_right_token_nothing_is_answered"),
        ("an address others reach needs a token", "mcp_server", _HTTP + "test_an_address_others_reach_needs_a_token"),
        ("Host is checked", "mcp_server", _HTTP + "test_any_other_host_is_refused"),
        ("Origin is checked", "mcp_server", _HTTP + "test_any_other_origin_is_refused"),
        ("body size is limited", "mcp_server", _HTTP + "test_a_body_over_the_limit_is_refused"),
        ("the server imports only the SDK before the first question", "packaging", _START + "test_importing_the_server_loads_nothing_heavy"),
        ("no model library ever loads in the server", "packaging", _START + "test_a_whole_conversation_loads_no_model_library"),
        ("file descriptor 1 is guarded before imports", "mcp_server", _START + "test_standard_output_is_claimed_before_the_sdk_is_loaded"),
        ("check, compile, run and gate work on one program from end to end", "npu_tools", _NPU + "test_a_program_is_checked_compiled_run_and_gated"),
        ("a failing compile is an answer with findings and lessons", "npu_tools", _NPU + "test_a_refused_program_is_an_answer_with_limit_remedy_and_lesson"),
        ("a deadlock is explained, never hung", "npu_tools", _NPU + "test_a_deadlock_is_explained"),
        ("text that is no program is told with its place", "npu_tools", _NPU + "test_text_that_is_no_program_is_told_with_its_place"),
        ("a kernel and a model are checked", "npu_tools", _NPU + "test_a_kernel_and_a_model_are_checked"),
        ("unusable requests say what to change", "npu_tools", _NPU + "test_unusable_requests_say_what_to_change"),
        ("over HTTP only the workspace is reached", "mcp_server", _NPU + "test_over_http_only_files_of_the_workspace_are_used"),
        ("findings are bounded", "mcp_server", _NPU + "test_answers_stay_small_however_much_is_found"),
        ("a job outlives the process that started it", "mcp_server", _JOBS + "test_a_job_outlives_the_process_that_started_it"),
        ("a killed job is told as failed", "mcp_server", _JOBS + "test_a_killed_job_is_told_as_failed_and_never_as_running"),
        ("a job can be cancelled in any state", "mcp_server", _JOBS + "test_a_running_job_is_cancelled"),
        ("CPU slots are respected", "mcp_server", _JOBS + "test_no_more_jobs_run_at_once_than_there_are_slots_and_a_queued_one_can_be_cancelled"),
    )
)  # fmt: skip
