"""The tools of the five servers that ship with mcprl, written by hand from their contract."""

from __future__ import annotations

from mcprl.tools import Tool

# server, tool, required arguments, optional arguments. All are texts but those marked with #: numbers.
CONTRACT = """
fmp      fmp_get_quote               symbol
fmp      fmp_get_company_profile     symbol
fmp      fmp_get_income_statement    symbol                          period limit#
fmp      fmp_get_market_gainers      -                               limit#
fmp      fmp_get_market_losers       -                               limit#
fmp      fmp_search_ticker           query                           limit#
fmp      fmp_get_stock_news          -                               tickers limit#
fmp      fmp_get_change_percent      symbol
fmp      fmp_get_previous_close      symbol
polygon  polygon_get_aggs            ticker,start_date,end_date      frequency
polygon  polygon_get_news            ticker                          limit#
polygon  polygon_get_ticker_details  ticker
polygon  polygon_get_previous_close  ticker
polygon  polygon_get_market_status   -
tavily   tavily_search               query                           max_results# search_depth
tavily   tavily_qna_search           query
slack    list_slack_channels         -
slack    send_slack_message          channel,message
slack    get_slack_channel_history   channel_id                      limit#
python   execute_python              code                            description
python   process_mcp_data            data,processing_code            description
python   analyze_financial_data      data,analysis_type              custom_code
python   create_data_pipeline        pipeline_steps,input_data       description
python   get_execution_context       context_key
python   store_execution_result      context_key,data                description
"""


def _tool(line: str) -> Tool:
    server, name, required, *optional = line.split()
    needed = [] if required == "-" else required.split(",")
    properties = {
        argument.rstrip("#"): {"type": "integer" if argument.endswith("#") else "string"}
        for argument in [*needed, *optional]
    }
    schema = {"type": "object", "properties": properties, "required": needed}
    return Tool(name=name, description="", server=server, parameters=schema)


SHIPPED_TOOLS = tuple(_tool(line) for line in CONTRACT.strip().splitlines())
